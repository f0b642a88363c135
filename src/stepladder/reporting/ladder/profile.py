"""The profile before and after a climb: time by phase, and utilisation of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepladder.ladder.summary.wording import epoch_range_words, time_range
from stepladder.ladder.timing.epoch_range import time_bounds_s
from stepladder.records.profile import Profile
from stepladder.reporting.charts.scales import tick_label
from stepladder.reporting.headline import PHASE_WORDS, TimeSpent, spent
from stepladder.training.output.wording import percent, rough_time

PART_WORDS = {
    "training": "training steps",
    "validation": "validation",
    "checkpoint": "checkpoints",
    "features": "features, once",
    "compile": "compiling, once",
    "store": "decoding into a store, once",
    "load": "loading, once",
    "start": "starting the processes, once",
    "download": "downloading from the object store, once",
}


@dataclass(frozen=True, kw_only=True)
class ProfileTimes:
    """Bars of the same kind, before and after."""

    title: str
    bars: tuple[TimeSpent, ...]


@dataclass(frozen=True, kw_only=True)
class ProfileRow:
    """A measured value before and after, and its source."""

    name: str
    before: str
    after: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ProfileView:
    """Content of the profile section.

    Attributes:
        has_two: there is a profile before and after.
        note: the roofline in a few sentences; empty if it was not measured.
    """

    times: tuple[ProfileTimes, ...]
    rows: tuple[ProfileRow, ...]
    has_two: bool
    note: str


@dataclass(frozen=True)
class _Fact:
    """A measured value: its title, its field in a profile, and its format.

    Attributes:
        read: computes the value, if it is not the field itself.
        mark: returns a suffix of the value.
        why_unknown: returns why the value could not be measured; empty if it was not attempted.
    """

    name: str
    field: str
    say: Callable[[float], str]
    read: Callable[[Profile], float | None] | None = None
    mark: Callable[[Profile], str] = lambda _: ""
    why_unknown: Callable[[Profile], str] = lambda _: ""

    def value(self, profile: Profile) -> float | None:
        """Return the value."""
        found = getattr(profile, self.field) if self.read is None else self.read(profile)
        return None if found is None else float(found)


def profile_view(profiles: Sequence[Profile]) -> ProfileView | None:
    """Compare the first profile with the last; None without a profile."""
    if not profiles:
        return None
    first, last = profiles[0], profiles[-1]
    shown = [first] if last == first else [first, last]
    titles = ("Before", "After") if len(shown) == 2 else ("Original job",)
    parts = [_parts(title, item) for title, item in zip(titles, shown, strict=True)]
    steps = [_step(title, item) for title, item in zip(titles, shown, strict=True)]
    times = (
        ("Time to a trained model, by its parts", parts),
        ("One training step, by phase", steps),
    )
    return ProfileView(
        times=tuple(
            ProfileTimes(title=title, bars=tuple(bar for bar in bars if bar is not None))
            for title, bars in times
            if any(bars)
        ),
        rows=tuple(row for fact in _FACTS if (row := _row(fact, shown)) is not None),
        has_two=len(shown) == 2,
        note=_note(shown[-1]),
    )


def _parts(title: str, profile: Profile) -> TimeSpent | None:
    time = profile.time
    sizes = {
        "training": time.epochs * time.epoch_s,
        "validation": time.num_validations * time.validation_s,
        "checkpoint": time.checkpoint_s,
        **time.one_time_s,
    }
    if not math.isfinite(sum(sizes.values())):
        return None
    sizes = {name: size for name, size in sizes.items() if size > 0}
    title = f"{title}: {rough_time(time.total_s)}{_over_seeds(profile)}"
    return spent(title, sizes, words=PART_WORDS, say=rough_time)


def _over_seeds(profile: Profile) -> str:
    """Return the ranges of epochs and time, if early stopping decides them."""
    if profile.epoch_range is None:
        return ""
    said = f"{epoch_range_words(profile.epoch_range)}, {time_range(*time_bounds_s(profile))}"
    return f" for {profile.time.epochs:.3g} epochs; {said}"


def _step(title: str, profile: Profile) -> TimeSpent | None:
    sizes = {name: s for name, s in profile.phases_s.items() if math.isfinite(s) and s > 0}
    named, share = sum(sizes.values()), profile.unexplained_frac
    if 0 < share < 1:
        sizes["unexplained"] = named * share / (1 - share)
    title = f"{title}: {rough_time(sum(sizes.values()))}"
    return spent(title, sizes, words=PHASE_WORDS, say=rough_time)


def _row(fact: _Fact, profiles: Sequence[Profile]) -> ProfileRow | None:
    cells = [_cell(fact, profile) for profile in profiles]
    if not any(cells):
        return None
    sources = [profile.provenance.get(fact.field) for profile in profiles]
    known = dict.fromkeys(source.value for source in sources if source is not None)
    return ProfileRow(
        name=fact.name,
        before=cells[0] or "not measured",
        after=cells[-1] or "not measured",
        source=", ".join(known),
    )


def _cell(fact: _Fact, profile: Profile) -> str:
    value = fact.value(profile)
    if value is None or not math.isfinite(value):
        return fact.why_unknown(profile)
    return fact.say(value) + fact.mark(profile)


def _note(profile: Profile) -> str:
    ridge, mfu = _ridge(profile), profile.mfu
    said = []
    if mfu is not None and math.isfinite(mfu):
        what = "the trunk's single pass over the examples" if _is_cached(profile) else "a step"
        said.append(
            f"At the end, {what} reached {percent(mfu)} of the FLOP/s of a large matrix product on "
            "this machine (MFU)."
        )
    if ridge is not None:
        said.append(
            f"Operations with fewer than {tick_label(round(ridge, 1))} FLOP per byte are limited "
            "by memory bandwidth on this machine (the ridge of the roofline)."
        )
    intensity, attainable = _intensity(profile), _attainable(profile)
    if ridge is not None and intensity is not None and attainable is not None:
        side = "memory bandwidth" if intensity < ridge else "compute"
        said.append(
            f"The model's forward pass has {tick_label(float(f'{intensity:.2g}'))} FLOP per byte, "
            f"without fusion of layers: it is limited by {side}, to {_flops_per_s(attainable)}."
        )
    return " ".join(said)


def _ridge(profile: Profile) -> float | None:
    peak, bandwidth = profile.peak_flops_per_s, profile.bandwidth_bytes_per_s
    return peak / bandwidth if peak and bandwidth else None


def _intensity(profile: Profile) -> float | None:
    """Return the FLOP per byte of the forward pass."""
    flops, moved = profile.forward_flops, profile.forward_bytes
    return flops / moved if flops and moved else None


def _attainable(profile: Profile) -> float | None:
    """Return the limit of the roofline: min(peak, intensity x bandwidth)."""
    intensity = _intensity(profile)
    peak, bandwidth = profile.peak_flops_per_s, profile.bandwidth_bytes_per_s
    if intensity is None or not peak or not bandwidth:
        return None
    return min(peak, intensity * bandwidth)


def _is_cached(profile: Profile) -> bool:
    """Return True if features are cached, so that a step only trains the head."""
    return "features" in profile.time.one_time_s


def _of_the_trunk(profile: Profile) -> str:
    return " in the trunk" if _is_cached(profile) else ""


def _why_no_noise_scale(profile: Profile) -> str:
    why = profile.noise_scale_unknown_because
    return f"unknown: {why}" if why else ""


def _examples_per_s(profile: Profile) -> float | None:
    epoch_s = profile.time.epoch_s
    return profile.num_train / epoch_s if epoch_s > 0 else None


def _wait(profile: Profile) -> float | None:
    named = sum(profile.phases_s.values())
    share = profile.phases_s.get("data_wait", 0.0) / named if named > 0 else None
    return share * (1 - profile.unexplained_frac) if share is not None else None


def _data_bound(profile: Profile) -> float | None:
    """Return the maximum gain of a step if data were always ready."""
    host_s = profile.replay_host_s
    return profile.time.step_s / host_s if host_s else None


def _largest_memory(profile: Profile) -> float | None:
    sizes = profile.memory_by_batch
    return float(sizes[max(sizes)]) if sizes else None


def _flops(value: float) -> str:
    return _scaled(value, "FLOP")


def _flops_per_s(value: float) -> str:
    return _scaled(value, "FLOP/s")


def _bytes(value: float) -> str:
    return _scaled(value, "B")


def _bytes_per_s(value: float) -> str:
    return _scaled(value, "B/s")


def _scaled(value: float, unit: str) -> str:
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _rounded(value: float) -> str:
    return tick_label(float(f"{value:.3g}"))


def _times(value: float) -> str:
    return f"{value:.2f}×"


_FACTS = (
    _Fact("training throughput, examples/s", "phases_s", _rounded, read=_examples_per_s),
    _Fact("time per step", "phases_s", rough_time, read=lambda p: p.time.step_s),
    _Fact("waiting for data", "phases_s", percent, read=_wait),
    _Fact("maximum gain if data were always ready", "replay_host_s", _times, read=_data_bound),
    _Fact("throughput of the loader alone, examples/s", "loader_per_s", _rounded),
    _Fact("time to read an example, one thread", "loader_fetch_s", rough_time),
    _Fact(
        "time to decode an example, one thread",
        "loader_decode_s",
        rough_time,
        read=lambda p: p.loader_decode_s or None,
    ),
    _Fact("read bandwidth of one thread", "fetch_bytes_per_s", _bytes_per_s),
    _Fact("forward pass of the trunk, per example", "trunk_s", rough_time),
    _Fact("FLOP of a step, per example", "step_flops", _flops),
    _Fact(
        "arithmetic intensity of the forward pass, FLOP/byte",
        "forward_bytes",
        _rounded,
        read=_intensity,
    ),
    _Fact(
        "roofline limit of the forward pass",
        "forward_bytes",
        _flops_per_s,
        read=_attainable,
    ),
    _Fact("peak of a large matrix product", "peak_flops_per_s", _flops_per_s),
    _Fact("memory bandwidth of a large copy", "bandwidth_bytes_per_s", _bytes_per_s),
    _Fact("disk read bandwidth, without cache", "disk_bytes_per_s", _bytes_per_s),
    _Fact("download bandwidth of the object store", "link_bytes_per_s", _bytes_per_s),
    _Fact("hit rate of the file cache", "cache_hit_frac", percent),
    _Fact("model FLOPs utilisation (MFU)", "mfu", percent, mark=_of_the_trunk),
    _Fact("size of trainable weights", "trainable_bytes", _bytes),
    _Fact("memory of a step, largest batch tried", "memory_by_batch", _bytes, read=_largest_memory),
    _Fact(
        "gradient noise scale, in examples",
        "noise_scale",
        _rounded,
        why_unknown=_why_no_noise_scale,
    ),
    _Fact("time of the final checkpoint", "save_s", rough_time),
)

"""What is planned: a training, as it was measured or described."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.choices import Precision
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, gpu_named
from stepladder.planning.hardware.ranges import Case, Range
from stepladder.planning.hardware.speed import Rates
from stepladder.records.model_size import ModelSize
from stepladder.records.plan import Bounds, PlanInput
from stepladder.records.profile import Gradient, Profile, Provenance
from stepladder.stats.maxima import expected_max

_EVEN_PARTS: Final = 16
_ASSUMED_SPREAD: Final = (0.005, 0.02, 0.06)
_START_S: Final = 3.0
"""Until the processes of several devices have met, where it was not measured."""
_BACKWARD_FRAC: Final = 2 / 3
_OPTIMIZER: Final = "optimizer"


@dataclass(frozen=True, kw_only=True)
class MemoryLine:
    """Peak bytes of a step by examples in a pass: fixed + example x b, measured at two sizes.

    With weights and the optimizer's state.
    """

    fixed_bytes: float
    example_bytes: float


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A training to plan.

    Attributes:
        name: in words.
        device_name, device: that it was measured on, by product name, and cpu or cuda.
        rates: what that device reaches; None: not known, so that no other can be planned.
        precision: of the arithmetic that was measured.
        fixed_s, per_example_s: a and c of t(b) = a + c b, without the update.
        update_s: the optimizer's.
        backward_frac: share of the backward pass.
        gradients: in the order in which they are ready; num_bytes: of all.
        batch: examples of a step; num_train: of an epoch.
        epochs: until training ends.
        loader_example_s: of a host's loader for an example; 0: not known.
        once_s: work that is done once; validation_s: of all validations; checkpoint_s: of all.
        start_s: until several processes have met.
        spread: of a step over devices.
        noise_scale: gradient noise scale in examples; None: not known.
        noise_source: where it is from, and how well it is known.
        num_blocks: identical blocks, at whose ends gradient checkpointing keeps activations.
        size: what decides how the model is divided; memory: of a step; None: not measured.
        memory_bytes: of the device it was measured on; None: not known.
        inputs: further numbers, for the table of all.
    """

    name: str
    device_name: str
    device: str
    rates: Rates | None = None
    precision: Precision = Precision.FP32
    fixed_s: Range
    per_example_s: Range
    update_s: float = 0.0
    backward_frac: float = _BACKWARD_FRAC
    gradients: tuple[Gradient, ...]
    batch: int
    num_train: int
    epochs: Bounds
    loader_example_s: float = 0.0
    once_s: float = 0.0
    validation_s: float = 0.0
    checkpoint_s: float = 0.0
    start_s: float = _START_S
    spread: Range
    noise_scale: float | None = None
    noise_source: tuple[Provenance, str] = (Provenance.MEASURED, "profile")
    num_blocks: int = 0
    size: ModelSize | None = None
    memory: MemoryLine | None = None
    memory_bytes: float | None = None
    inputs: tuple[PlanInput, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(gradient.num_bytes for gradient in self.gradients)

    def step_s(self, case: Case = Case.LIKELY) -> float:
        """Seconds of a step on one device like that of the job, with its batch."""
        return self.fixed_s.at(case) + self.per_example_s.at(case) * self.batch + self.update_s


def evenly(num_bytes: int) -> tuple[Gradient, ...]:
    """Return gradients that are ready evenly over the backward pass, where it is not measured."""
    if num_bytes <= 0:
        return ()
    part = num_bytes / _EVEN_PARTS
    return tuple(
        Gradient(num_bytes=round(part), ready_frac=(idx + 1) / _EVEN_PARTS)
        for idx in range(_EVEN_PARTS)
    )


def assumed_spread() -> Range:
    """Return the spread of a step over devices where it was not measured."""
    best, likely, worst = _ASSUMED_SPREAD
    return Range(
        best=best,
        likely=likely,
        worst=worst,
        provenance=Provenance.ASSUMED,
        source="2 %: ResNet-50 on a DGX-1, see docs/planner.md",
    )


def job_of_profile(profile: Profile, *, name: str) -> PlannedJob:
    """Return the job of a profile, as a climb measures it."""
    now = profile.time
    batch = max(1, round(profile.num_train / max(now.steps_per_epoch, 1e-12)))
    update_s = profile.phases_s.get(_OPTIMIZER, 0.0)
    fixed_s, example_s = _line_of(profile, batch, update_s)
    forward_s, backward_s = (profile.phases_s.get(part, 0.0) for part in ("forward", "backward"))
    both_s = forward_s + backward_s
    measured = profile.gradients
    stops = profile.epoch_range
    epochs = Bounds(best=now.epochs, likely=now.epochs, worst=now.epochs)
    if stops is not None:
        epochs = Bounds(best=stops.low, likely=stops.mean, worst=stops.high)
    gpu = gpu_named((*GPUS, *OLDER_GPUS), profile.device_name) if profile.device == "cuda" else None
    return PlannedJob(
        name=name,
        device_name=profile.device_name,
        device=profile.device,
        rates=Rates.of_profile(profile),
        fixed_s=fixed_s,
        per_example_s=example_s,
        update_s=min(update_s, now.step_s),
        backward_frac=backward_s / both_s if both_s > 0 else _BACKWARD_FRAC,
        gradients=measured or evenly(profile.trainable_bytes),
        batch=batch,
        num_train=profile.num_train,
        epochs=epochs,
        loader_example_s=1 / profile.loader_per_s if profile.loader_per_s else 0.0,
        once_s=sum(seconds for part, seconds in now.one_time_s.items() if part != "start"),
        validation_s=now.num_validations * now.validation_s,
        checkpoint_s=now.checkpoint_s,
        start_s=_START_S if profile.devices is None else profile.devices.start_s,
        spread=_spread_of(profile),
        noise_scale=profile.noise_scale,
        num_blocks=profile.num_blocks,
        size=profile.size,
        memory=_memory_of(profile),
        memory_bytes=float(profile.free_memory_bytes) if gpu is None else gpu.memory_bytes,
        inputs=tuple(_inputs_of(profile, both_s, has_gradients=bool(measured))),
    )


def memory_line(peaks: Mapping[int, int]) -> MemoryLine | None:
    """Return the line through the peaks of a step at two batch sizes; None without two."""
    sizes = sorted(peaks.items())
    if len(sizes) < 2 or sizes[0][0] == sizes[-1][0]:
        return None
    (small, first), (large, last) = sizes[0], sizes[-1]
    example = max(0.0, (last - first) / (large - small))
    return MemoryLine(fixed_bytes=max(0.0, first - small * example), example_bytes=example)


def _memory_of(profile: Profile) -> MemoryLine | None:
    """Return the memory of a step; on a CPU, a profile counts only what the step itself makes."""
    line = memory_line(profile.memory_by_batch)
    if line is None or profile.device == "cuda":
        return line
    states = 0 if profile.size is None else profile.size.states
    return replace(line, fixed_bytes=line.fixed_bytes + profile.weight_bytes + states)


def _line_of(profile: Profile, batch: int, update_s: float) -> tuple[Range, Range]:
    """Return a and c of a step, without the update."""
    a, c = profile.step_fixed_s, profile.step_per_example_s
    if a is not None and c is not None:
        source = "profile: steps at three batch sizes"
        return (
            Range.exact(max(0.0, a - update_s), Provenance.MEASURED, source),
            Range.exact(c, Provenance.MEASURED, source),
        )
    whole_s = profile.replay_device_s or profile.time.step_s
    return split_step(max(0.0, whole_s - update_s), batch, source="profile: a step of one size")


def split_step(step_s: float, batch: int, *, source: str) -> tuple[Range, Range]:
    """Return a and c of t(b) where one batch size was measured: a is 5 % of it, 0 to 20 %.

    With more devices a batch becomes smaller on each, so that a small a is the best case; with a
    larger one it is the worst, and `outlook` exchanges the two.
    """
    shares = {Case.BEST: 0.0, Case.LIKELY: 0.05, Case.WORST: 0.2}
    fixed = {case: share * step_s for case, share in shares.items()}
    rest = {case: (step_s - seconds) / batch for case, seconds in fixed.items()}
    note = f"{source}; the share of the batch is assumed"
    first, second = (
        Range(
            best=values[Case.BEST],
            likely=values[Case.LIKELY],
            worst=values[Case.WORST],
            provenance=Provenance.ASSUMED,
            source=note,
        )
        for values in (fixed, rest)
    )
    return first, second


def _spread_of(profile: Profile) -> Range:
    """Return the spread of a step over devices: measured, if several were."""
    devices = profile.machines or profile.devices
    if devices is None or not devices.share_step_s or devices.share_delay_s <= 0:
        return assumed_spread()
    alone_s = devices.share_step_s - devices.share_delay_s
    spread = devices.share_delay_s / alone_s / expected_max(devices.num)
    source = f"profile: steps of {devices.num} devices"
    return Range.exact(spread, Provenance.MEASURED, source)


def _inputs_of(profile: Profile, both_s: float, *, has_gradients: bool) -> Iterator[PlanInput]:
    measured, assumed = Provenance.MEASURED, Provenance.ASSUMED
    yield exact_input(
        "share of the backward pass",
        "",
        _BACKWARD_FRAC if both_s <= 0 else profile.phases_s.get("backward", 0.0) / both_s,
        assumed if both_s <= 0 else measured,
        "profile: phases of a step" if both_s > 0 else "twice the forward pass",
    )
    yield exact_input(
        "order of the gradients",
        "",
        float(len(profile.gradients)),
        measured if has_gradients else assumed,
        "profile: one backward pass" if has_gradients else "evenly over the backward pass",
    )


def exact_input(
    name: str, unit: str, value: float, provenance: Provenance, source: str
) -> PlanInput:
    """Return a number without bounds, for the table of all inputs."""
    bounds = Bounds(best=value, likely=value, worst=value)
    return PlanInput(name=name, unit=unit, bounds=bounds, provenance=provenance, source=source)


def range_input(name: str, unit: str, value: Range, factor: float = 1.0) -> PlanInput:
    """Return a number with its bounds, for the table of all inputs."""
    bounds = Bounds(
        best=factor * value.best, likely=factor * value.likely, worst=factor * value.worst
    )
    return PlanInput(
        name=name, unit=unit, bounds=bounds, provenance=value.provenance, source=value.source
    )

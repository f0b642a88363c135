"""Choose the next step to recommend, from what watching and replaying measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stepladder.machine.contention import MAX_CORES_MISSING
from stepladder.machine.openmp import BUSY_SPINS
from stepladder.records.climb import NextStep
from stepladder.records.watch import PhaseTime, Replay

MIN_GAIN: Final = 1.1  # smaller gains are not recommended
_MIN_STEPS: Final = 20
AS_IS: Final = "as_is"
_REPLAYED: Final = {
    "mixed_precision": "bfloat16 autocast",
    "channels_last": "channels_last memory format (NHWC)",
    "larger_batch": "twice the batch size (scale the learning rate with it)",
}


def next_step(
    times: Sequence[PhaseTime],
    num_steps: int,
    facts: Mapping[str, object],
    replays: Sequence[Replay] = (),
) -> tuple[NextStep | None, bool]:
    """Return the step with the largest gain, if that is at least 1.1.

    Watching alone gives only upper bounds: a phase can save at most the time it takes. The gains
    replayed by the probe are measured, and win unless a bound is more than twice as large. Beside
    other processes no time can be trusted, and threads that spin come first.

    Returns:
        The step, or None if too few steps were seen; and whether its gain is only a bound.
    """
    if num_steps < _MIN_STEPS or not times:
        return None, True
    if _spins_beside_others(facts):
        return _sleep_sooner(facts), True
    shares = {time.name: time.share for time in times}
    bounds = _bounds(shares, facts, _data_share(times, num_steps, facts, replays))
    measured = _measured(times, replays)
    best = max(bounds, key=lambda step: step.gain or 0.0, default=None)
    proven = max(measured, key=lambda step: step.gain or 0.0, default=None)
    if proven is not None and (proven.gain or 0.0) >= MIN_GAIN:
        is_beaten = best is not None and (best.gain or 0.0) > 2 * (proven.gain or 0.0)
        if not is_beaten:
            return proven, False
    if best is not None and (best.gain or 0.0) >= MIN_GAIN:
        return best, True
    more = _not_known(replays) if replays else "; --probe replays steps with other settings"
    text = f"nothing that was measured would make a step 1.1 times faster{more}"
    return NextStep(rung="none", gain=None, text=text), True


def _spins_beside_others(facts: Mapping[str, object]) -> bool:
    """Return whether threads wait by spinning while other processes use their cores."""
    missing, threads = facts.get("cores_missing"), facts.get("threads")
    return (
        isinstance(missing, float)
        and missing > MAX_CORES_MISSING
        and isinstance(threads, int)
        and threads > 1
        and facts.get("waiting") == ""
    )


def _sleep_sooner(facts: Mapping[str, object]) -> NextStep:
    return NextStep(
        rung="threads_sleep",
        text=f"other processes used {facts['cores_missing']:.1f} of this machine's cores, and the "
        f"{facts['threads']} threads wait for each other by spinning, which can make a step "
        f"several times as long: run it with GOMP_SPINCOUNT={BUSY_SPINS}, or on a quiet machine",
    )


def _data_share(
    times: Sequence[PhaseTime],
    num_steps: int,
    facts: Mapping[str, object],
    replays: Sequence[Replay],
) -> float:
    """Return the share that data may cost: the host's wait, or less if a replay bounds it."""
    shares = {time.name: time.share for time in times}
    wait = shares.get("data_wait", 0.0)
    base = next((r.example_s for r in replays if r.name == AS_IS), None)
    size = facts.get("batch_size")
    if not base or not isinstance(size, int):
        return wait
    whole_s = sum(t.total_s for t in times)
    own_s = whole_s * (1 - shares.get("validation", 0.0) - shares.get("checkpoint", 0.0))
    saved_s = max(0.0, own_s - num_steps * size * base)
    return min(wait, saved_s / whole_s) if whole_s else wait


def _bounds(
    shares: Mapping[str, float], facts: Mapping[str, object], wait: float
) -> list[NextStep]:
    """Return upper bounds on the gain of each part that a rung of the ladder addresses."""
    found = []
    if 0 < wait < 1:
        workers = facts.get("num_workers")
        how = (
            "set num_workers and persistent_workers"
            if not workers
            else "use more or faster workers"
        )
        found.append(
            NextStep(
                rung="loader_threads",
                gain=1 / (1 - wait),
                text=f"training waits for the data loader in {100 * wait:.0f} % of the time: "
                f"{how}, decode smaller images, or cache decoded pixels",
            )
        )
    step = shares.get("optimizer", 0.0)
    if 0 < step < 1 and facts.get("fused") is False:
        found.append(
            NextStep(
                rung="fused_optimizer",
                gain=1 / (1 - step),
                text=f"the optimizer takes {100 * step:.0f} % of the time: pass fused=True to it",
            )
        )
    held_out = shares.get("validation", 0.0)
    if 0 < held_out < 1:
        found.append(
            NextStep(
                rung="fewer_validations",
                gain=1 / (1 - held_out / 2),
                text=f"validation takes {100 * held_out:.0f} % of the time: validate half as often",
            )
        )
    return found


def _measured(times: Sequence[PhaseTime], replays: Sequence[Replay]) -> list[NextStep]:
    """Return what replays measured, as gains of the whole step."""
    share = sum(t.share for t in times if t.name in ("forward", "backward", "optimizer"))
    found = []
    for one in replays:
        words = _REPLAYED.get(one.name)
        if words is None or not one.gain:
            continue
        found.append(
            NextStep(
                rung=one.name,
                gain=1 / (1 - share + share / one.gain),
                text=f"{words}: in a replay on a copy, the computation of a step is {one.gain:.2f} "
                "times as fast",
            )
        )
    return found


def _not_known(replays: Sequence[Replay]) -> str:
    """Name the replays that ran but whose rounds disagree."""
    names = [one.name for one in replays if one.num_repeats and one.why_not is not None]
    return f"; {' and '.join(names)}: inconclusive, as the rounds disagree" if names else ""

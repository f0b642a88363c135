"""Choose the next step to recommend, from what watching and replaying measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepladder.machine.contention import MAX_CORES_MISSING
from stepladder.machine.openmp import BUSY_SPINS
from stepladder.records.climb import NextStep
from stepladder.records.watch import PhaseTime, Replay
from stepladder.watching.causes.contract import Cause, Evidence
from stepladder.watching.causes.data import loader_causes
from stepladder.watching.causes.denormals import denormal_causes
from stepladder.watching.causes.filled import filled_causes
from stepladder.watching.causes.graphs import graph_causes
from stepladder.watching.causes.growth import growth_causes
from stepladder.watching.causes.hooks import hook_causes
from stepladder.watching.causes.lines import own_lines
from stepladder.watching.causes.loops import loop_causes
from stepladder.watching.causes.masked import masked_causes
from stepladder.watching.causes.model import model_causes, optimizer_causes
from stepladder.watching.causes.rhythm import rhythm_causes
from stepladder.watching.causes.stores import store_causes
from stepladder.watching.causes.tables import table_causes
from stepladder.watching.seen.seen import Seen

MIN_GAIN: Final = 1.1  # smaller gains are not recommended
_MIN_STEPS: Final = 20
_LONG_S: Final = 5.0  # fewer steps do if they took as long
_MIN_LONG: Final = 2
_MAX_OTHERS: Final = 4
_LOOSE: Final = 2.0  # a loose bound is ranked as if it saved this many times less
_EXPLAINED: Final = 0.5  # of a general cause, by a more specific one
AS_IS: Final = "as_is"
_CAUSES: Final[tuple[Callable[[Evidence], list[Cause]], ...]] = (
    optimizer_causes,
    table_causes,
    denormal_causes,
    model_causes,
    loop_causes,
    filled_causes,
    masked_causes,
    rhythm_causes,
    hook_causes,
    graph_causes,
    store_causes,
    growth_causes,
    own_lines,
)
_REPLAYED: Final = {
    "mixed_precision": "bfloat16 autocast",
    "channels_last": "channels_last memory format (NHWC)",
    "larger_batch": "twice the batch size (scale the learning rate with it)",
}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The steps to recommend.

    Attributes:
        next: the one with the largest gain; None if too few steps were seen.
        is_bound: its gain is only a bound.
        others: further ones, in order.
        errors: internal errors of causes, which could not be tried.
    """

    next: NextStep | None
    is_bound: bool = True
    others: tuple[NextStep, ...] = ()
    errors: tuple[str, ...] = ()


def next_step(
    times: Sequence[PhaseTime],
    num_steps: int,
    facts: Mapping[str, object],
    replays: Sequence[Replay] = (),
    *,
    seen: Seen | None = None,
    block_s: Sequence[float] = (),
    num_validations: int = 0,
) -> Advice:
    """Return the step with the largest gain, if that is at least 1.1, and the others.

    Watching alone gives only upper bounds: what takes a share of the time can save at most that.
    A bound that a change may miss by far, such as `fused=True`, is ranked as if it saved half. The
    gains replayed by the probe are measured, and win unless a bound, ranked in this way, is more
    than twice as large. Threads that spin beside other processes come first if nothing else takes
    more.
    """
    whole_s = sum(time.total_s for time in times)
    is_long = num_steps >= _MIN_LONG and whole_s >= _LONG_S
    if (num_steps < _MIN_STEPS and not is_long) or not times:
        return Advice(next=None)
    shares = {time.name: time.share for time in times}
    evidence = Evidence(
        seen=seen if seen is not None else Seen(),
        shares=shares,
        whole_s=whole_s,
        num_steps=num_steps,
        facts=facts,
        block_s=tuple(block_s),
        busy=_busy(times, num_steps),
        num_validations=num_validations,
    )
    wait = _data_share(times, num_steps, facts, replays)
    found, errors = _tried(evidence, lambda known: loader_causes(known, wait), *_CAUSES)
    return replace(_ranked(_distinct(found), times, evidence, replays), errors=errors)


def _tried(
    evidence: Evidence, *causes: Callable[[Evidence], list[Cause]]
) -> tuple[list[Cause], tuple[str, ...]]:
    """Return the causes that hold, and the errors of those that could not be tried."""
    found: list[Cause] = []
    errors: list[str] = []
    for cause in causes:
        try:
            found += cause(evidence)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return found, tuple(errors)


def _ranked(
    causes: Sequence[Cause],
    times: Sequence[PhaseTime],
    evidence: Evidence,
    replays: Sequence[Replay],
) -> Advice:
    """Return causes that are worth a step in order, with the gain that a replay measured."""
    ranked = sorted(causes, key=_worth, reverse=True)
    useful = [cause for cause in ranked if cause.gain >= MIN_GAIN]
    steps = [_step_of(cause) for cause in useful]
    best = useful[0] if useful else None
    if _spins_beside_others(evidence.facts):
        waiting = _sleep_sooner(evidence.facts)
        if best is None or _worth(best) < _worth(_spinning(evidence)):
            return Advice(next=waiting, others=tuple(steps[:_MAX_OTHERS]))
        steps = [steps[0], waiting, *steps[1:]]
    measured = _measured(times, replays)
    proven = max(measured, key=lambda step: step.gain or 0.0, default=None)
    if proven is not None and (proven.gain or 0.0) >= MIN_GAIN:
        is_beaten = best is not None and _worth(best) > 2 * (proven.gain or 0.0)
        if not is_beaten:
            return Advice(next=proven, is_bound=False, others=tuple(steps[:_MAX_OTHERS]))
    if steps:
        return Advice(next=steps[0], others=tuple(steps[1 : 1 + _MAX_OTHERS]))
    more = _not_known(replays) if replays else "; --probe replays steps with other settings"
    text = f"nothing that was measured would make a step 1.1 times faster{more}"
    return Advice(next=NextStep(rung="none", gain=None, text=text))


def _worth(cause: Cause) -> float:
    """Return a gain by which causes are ranked: a loose bound counts less."""
    return 1 / (1 - min(cause.share, 0.98) / (_LOOSE if cause.is_loose else 1.0))


def _distinct(causes: Sequence[Cause]) -> list[Cause]:
    """Return causes without those of lines that a more specific one explains."""
    found = [one for one in causes if not any(_replaces(other, one) for other in causes)]
    explained = {where for one in found if one.name == "constant_steps" for where in one.lines}
    return [
        one
        for one in found
        if one.name == "constant_steps"
        or one.replaces
        or not one.lines
        or not explained.issuperset(one.lines)
    ]


def _replaces(one: Cause, other: Cause) -> bool:
    """Return whether a cause explains most of the time of a more general one."""
    if other.name not in one.replaces or one.share < _EXPLAINED * other.share:
        return False
    is_any_line = not one.lines or other.name == "constant_steps"
    return is_any_line or not set(one.lines).isdisjoint(other.lines)


def _step_of(cause: Cause) -> NextStep:
    return NextStep(rung=cause.name, gain=cause.gain, text=cause.text)


def _busy(times: Sequence[PhaseTime], num_steps: int) -> float:
    """Return the share of a step in which a GPU computes, by CUDA events; 0 if not known."""
    whole_s = sum(time.total_s for time in times)
    device_s = sum(time.device_s for time in times if time.device_s is not None)
    return min(1.0, device_s * num_steps / whole_s) if whole_s else 0.0


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


def _spinning(evidence: Evidence) -> Cause:
    """Return what threads that spin cost, if each core that is used by others is waited for."""
    missing, threads = evidence.facts["cores_missing"], evidence.facts["threads"]
    assert isinstance(missing, float)
    assert isinstance(threads, int)
    computed = evidence.compute + evidence.shares.get("optimizer", 0.0)
    share = computed * min(1.0, missing / threads)
    return Cause(name="threads_sleep", share=share, text="", is_loose=True)


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

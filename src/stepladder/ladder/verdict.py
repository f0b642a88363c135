"""The verdict on a trial, as a pure function of what it measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig
from stepladder.ladder.summary.wording import gain, points
from stepladder.records.ladder import Aim, Decision, Exactness, Interval, Verdict
from stepladder.rungs.devices.cost import cost_words, signed_percent
from stepladder.training.output.wording import percent

_DROPPED: Final = Decision.DROPPED
_UNDECIDED: Final = Decision.UNDECIDED
_MIN_MEMORY_SAVED: Final = 0.1
_LEAST_SHARE: Final = 0.005  # of the memory before, that is shown as a number


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a trial found.

    Attributes:
        aim: what the rung is for.
        exactness: how far it may change what is learnt.
        found: how far it did, as text; empty for a statistical rung.
        speed: time before over time after; None: not measured.
        price: per hour after, over that before; None: not known.
        cut_short: why its measurement ended early, as text; None: it did not.
        is_too_little: whether too little was measured for a verdict.
        accuracy: change of the held-out accuracy; None without classes, or without outcomes.
        loss: change of the mean held-out loss; None without outcomes.
        loss_before: the mean held-out loss before.
        num_held_out: examples behind accuracy and loss.
        why_no_outcomes: why nothing was trained to its end; None: it was, or it need not be.
        memory_frac: peak memory after over that before; None: not measured.
        num_epochs: epochs after, mean over seeds.
        is_replayed: whether outcomes come from replay on features.
        num_trainings: trainings of each recipe behind accuracy and loss.
        gap_before, gap_after: generalisation gap (see `Verdict`); it decides nothing.
    """

    aim: Aim
    exactness: Exactness
    found: str = ""
    speed: Interval | None = None
    price: float | None = 1.0
    cut_short: str | None = None
    is_too_little: bool = False
    accuracy: Interval | None = None
    loss: Interval | None = None
    loss_before: float | None = None
    num_held_out: int = 0
    why_no_outcomes: str | None = None
    memory_frac: float | None = None
    num_epochs: float | None = None
    is_replayed: bool = False
    num_trainings: int = 0
    gap_before: float | None = None
    gap_after: float | None = None


class Finding(NamedTuple):
    """A decision on one question, and why."""

    decision: Decision
    reason: str


def judge(evidence: Evidence, options: LadderConfig) -> Verdict:
    """Return the verdict: kept if it clearly pays off and is no worse, dropped, or undecided."""
    quality = judge_quality(evidence, options)
    decision, reason = _decide(evidence, options, quality)
    return Verdict(
        decision=decision,
        reason=reason,
        speed=evidence.speed,
        accuracy=evidence.accuracy,
        loss=evidence.loss,
        exactness=evidence.found,
        num_epochs=evidence.num_epochs,
        is_replayed=evidence.is_replayed,
        num_trainings=evidence.num_trainings,
        gap_before=evidence.gap_before,
        gap_after=evidence.gap_after,
    )


def _decide(evidence: Evidence, options: LadderConfig, quality: Finding) -> Finding:
    if quality.decision is _DROPPED:
        return quality
    if evidence.is_too_little:
        reason = f"{evidence.cut_short}; a verdict needs {options.num_blocks}"
        return Finding(_UNDECIDED, reason)
    match evidence.aim:
        case Aim.TIME:
            if evidence.speed is None and quality.decision is _UNDECIDED:
                return quality  # its reason covers both
            benefit = judge_cost(evidence.speed, evidence.price, options)
            if benefit.decision is _UNDECIDED and evidence.cut_short is not None:
                benefit = Finding(_UNDECIDED, f"{benefit.reason}; {evidence.cut_short}")
        case Aim.MEMORY:
            benefit = _judge_memory(evidence)
        case Aim.ACCURACY:
            return _judge_accuracy(evidence, options)
    return benefit if benefit.decision is not Decision.KEPT or _holds(quality) else quality


def _holds(quality: Finding) -> bool:
    """Return True if a change is no worse, without a remark."""
    return quality.decision is Decision.KEPT and not quality.reason


def judge_speed(speed: Interval | None, options: LadderConfig) -> Finding:
    """Judge a speed-up: keep it if its lower bound is above 1 and the estimate is large enough."""
    least = 1 + options.min_gain
    if speed is None:
        return Finding(_UNDECIDED, "the speed was not measured")
    if speed.low > 1 and speed.estimate >= least:
        return Finding(Decision.KEPT, "")
    if speed.high < 1:
        return Finding(_DROPPED, "slower")
    if speed.high < least:
        return Finding(_DROPPED, f"speed-up is at most {gain(speed.high, 2)}")
    if speed.low > 1:
        return Finding(_UNDECIDED, f"faster, but possibly by less than {gain(least, 2)}")
    return Finding(_UNDECIDED, "the noise is larger than the effect")


def judge_cost(speed: Interval | None, price: float | None, options: LadderConfig) -> Finding:
    """Judge a speed-up on hardware of another price: keep it if it is faster, and costs less.

    The cost of the whole training is its time multiplied by the price per hour; its bounds are
    those of the time. If the price is not known, the time decides, and the reason says up to which
    price it is worth it.

    Args:
        price: per hour after, over that before; 1: the same hardware; None: not known.
    """
    by_time = judge_speed(speed, options)
    if speed is None or by_time.decision is not Decision.KEPT or price == 1:
        return by_time
    words = cost_words(speed.estimate, price)
    if price is None:
        return Finding(Decision.KEPT, words)
    cheaper = Interval(
        estimate=speed.estimate / price, low=speed.low / price, high=speed.high / price
    )
    decision = judge_speed(cheaper, options).decision
    if decision is _UNDECIDED:
        low, high = (signed_percent(price / bound) for bound in (speed.high, speed.low))
        words += f"; the change in cost is between {low} and {high}"
    elif decision is _DROPPED and cheaper.estimate > 1:
        words += f"; less than {percent(options.min_gain, 0)} is not worth it (ladder.min_gain)"
    return Finding(decision, words)


def judge_quality(evidence: Evidence, options: LadderConfig) -> Finding:
    """Judge whether a change is no worse: by its exactness, else on held-out examples.

    Accuracy may fall by max_accuracy_loss; without classes, the loss may rise by that fraction.
    """
    if evidence.exactness is not Exactness.STATISTICAL:
        return Finding(Decision.KEPT, "")
    if evidence.why_no_outcomes is not None:
        return Finding(_UNDECIDED, evidence.why_no_outcomes)
    if evidence.accuracy is not None:
        return _no_worse(evidence.accuracy, options.max_accuracy_loss, evidence.num_held_out)
    return _no_higher(evidence, options.max_accuracy_loss)


def _no_worse(change: Interval, margin: float, num_held_out: int) -> Finding:
    if change.low >= -margin:
        return Finding(Decision.KEPT, "")
    if change.high < -margin:
        return Finding(_DROPPED, f"worse: {points(change.estimate)} points of accuracy")
    half = 100 * (change.high - change.low) / 2
    return Finding(
        _UNDECIDED,
        f"the accuracy may fall by more than {_points(100 * margin)}: "
        f"{_told_apart(num_held_out, half)}",
    )


def _no_higher(evidence: Evidence, max_share: float) -> Finding:
    change = evidence.loss
    if change is None or evidence.loss_before is None:
        return Finding(
            _UNDECIDED,
            "there are no held-out examples (no validation split) on which to compare models",
        )
    margin = max_share * abs(evidence.loss_before)
    if change.high <= margin:
        return Finding(Decision.KEPT, "")
    if change.low > margin:
        return Finding(_DROPPED, f"worse: the loss rises by {change.estimate:.2g}")
    half = (change.high - change.low) / 2
    num = evidence.num_held_out
    return Finding(
        _UNDECIDED,
        f"with {num:,} held-out examples, the change of the loss is known only to ± {half:.2g}",
    )


def _points(number: float) -> str:
    return f"{number:g} point" if number == 1 else f"{number:g} points"


def _told_apart(num_held_out: int, half: float) -> str:
    return (
        f"with {num_held_out:,} held-out examples, the change in accuracy is known only to ± "
        f"{half:.2g} points"
    )


def _judge_memory(evidence: Evidence) -> Finding:
    share = evidence.memory_frac
    if share is None:
        return Finding(_UNDECIDED, "memory use was not measured")
    words = f"peak memory is {100 * share:.0f} % of what it was"
    if share > 1 - _MIN_MEMORY_SAVED:
        return Finding(_DROPPED, words)
    return Finding(Decision.KEPT, words if share >= _LEAST_SHARE else "uses almost no memory")


def _fall_of_loss(evidence: Evidence) -> Interval | None:
    """Return the fall of the held-out loss as a fraction: 1 % of it counts as one point."""
    change, before = evidence.loss, evidence.loss_before
    if change is None or not before:
        return None
    estimate, low, high = (
        -value / abs(before) for value in (change.estimate, change.high, change.low)
    )
    return Interval(estimate=estimate, low=low, high=high, confidence=change.confidence)


def _wanted(evidence: Evidence, change: Interval) -> str:
    """Return how many examples would show the estimated change, as bounds shrink with sqrt(n)."""
    if change.estimate <= 0:
        return ""
    num = evidence.num_held_out * ((change.estimate - change.low) / change.estimate) ** 2
    rounded = float(f"{num:.1e}")
    return f"; about {rounded:,.0f} would be needed to show {points(change.estimate)}"


def _judge_accuracy(evidence: Evidence, options: LadderConfig) -> Finding:
    """Judge a gain of accuracy that costs time, at the user's rate (`time_per_point`)."""
    change, speed = evidence.accuracy, evidence.speed
    is_the_aim = options.aim is not ClimbAim.TIME
    if is_the_aim and change is None:
        change = _fall_of_loss(evidence)
    if evidence.why_no_outcomes is not None:
        return Finding(_UNDECIDED, evidence.why_no_outcomes)
    if change is None or speed is None:
        has_losses = change is None and evidence.loss is not None
        no_rate = "the task has no accuracy, and the time that a lower loss is worth is not defined"
        return Finding(_UNDECIDED, no_rate if has_losses else "accuracy or time was not measured")
    if change.high <= 0:
        return Finding(_DROPPED, "not more accurate")
    if change.low <= 0:
        half = 100 * (change.high - change.low) / 2
        told = _told_apart(evidence.num_held_out, half)
        wanted = _wanted(evidence, change) if is_the_aim else ""
        return Finding(_UNDECIDED, f"{told}{wanted}")
    cost, allowed = 1 / speed.estimate, options.time_per_point ** (100 * change.estimate)
    if cost > allowed:
        words = f"{gain(cost, 2)} the time for {points(change.estimate)} points"
        return Finding(
            _DROPPED, f"{words}; ladder.time_per_point allows at most {gain(allowed, 2)} for them"
        )
    return Finding(Decision.KEPT, "")

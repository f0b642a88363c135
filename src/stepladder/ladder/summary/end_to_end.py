"""The headline of a climb: the original job and the result, timed in turn after the climb."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from stepladder.ladder.climb import Climb
from stepladder.ladder.limits.guard import TrialFailed, Watchdog, faults_told, guarded
from stepladder.ladder.summary.climb_summary import FAR_APART
from stepladder.ladder.timing.patience import Patience, allowance_s
from stepladder.ladder.timing.speedup import Length, Speed, length_of, measure_speed
from stepladder.machine import Usage, cores_missing_since
from stepladder.records.climb import Baseline, PhaseLoad, RatioFrom
from stepladder.records.ladder import Decision, Interval, Trial

_LEAST_S: Final = 20.0
"""Seconds for the pairs, even if the budget has ended: a headline needs them."""
_PATIENCE_S: Final = 90.0
"""Seconds to wait for pairs that no other process disturbs."""
OF_DEFAULT: Final = frozenset(
    {"cached_features", "channels_last", "fused_optimizer", "loader_threads"}
)
"""Rungs that `train` takes by itself, unless `auto` is off (`training/setup/automatic.py`)."""
_BUDGET_FRAC: Final = 0.05  # of the budget, if that is more
_COMPILES: Final = "a model that is compiled would have to be compiled again"
SAME_STEPS: Final = "both take the same steps, so that only their numbers were compared"


@dataclass(frozen=True, kw_only=True)
class EndToEnd:
    """Original job and result, timed in turn.

    Attributes:
        speed: the speed-up, with bounds; times are means over the pairs. It has no pairs if both
            take the same steps.
        load: other processes' use of the cores during the pairs that count.
    """

    speed: Speed
    load: PhaseLoad


class Ratio(NamedTuple):
    """The ratio that is quoted.

    Attributes:
        bounds: the ratio with its bounds.
        is_other_chain: whether the kept rungs' gains multiply to another ratio, beyond the bounds,
            or to a smaller one while the timings of the original job are far apart.
        source: the measurement from which it is.
    """

    bounds: Interval
    is_other_chain: bool
    source: RatioFrom


def time_in_pairs(climbing: Climb, baseline: Baseline, *, epochs: float) -> EndToEnd | str:
    """Time the original job and the result in interleaved blocks.

    A recipe that compiles is not timed again, as one timing would compile the model twice.

    Args:
        baseline: has the epochs of the original job.
        epochs: epochs of the final training.

    Returns:
        The timing, or why it was not possible; an empty text if nothing was kept.
    """
    if climbing.lab.job.recipe == climbing.recipe:
        return ""
    if climbing.lab.job.recipe.device.compile or climbing.recipe.device.compile:
        return _COMPILES
    try:
        with faults_told("timing both in turn failed:"):
            return _in_pairs(climbing, baseline, epochs=epochs)
    except TrialFailed as failure:
        return failure.what


def _in_pairs(climbing: Climb, baseline: Baseline, *, epochs: float) -> EndToEnd:
    """Time both in interleaved blocks, while no other process uses the cores if that is possible.

    Raises:
        TrialFailed: if that fails.
    """
    lab, before, after = climbing.lab, climbing.lab.job.recipe, climbing.recipe
    allowed_s = max(_LEAST_S, _BUDGET_FRAC * lab.budget_s)
    ends = time.monotonic() + allowed_s
    allowed_wait_s = allowance_s(baseline.total_s, lab.job.ladder.budget_s)
    patience = Patience(left_s=min(_PATIENCE_S, allowed_wait_s, max(0.0, lab.time_left())))
    start = Usage.now()
    watchdog = Watchdog(time_left=lab.time_left)
    with guarded(watchdog):
        speed = measure_speed(
            lab,
            climbing.profiles[0],
            (before, _of_epochs(length_of(lab, before), baseline.epochs)),
            (after, _of_epochs(length_of(lab, after), epochs, is_known=True)),
            folder=lab.cache / "end_to_end",
            watchdog=watchdog,
            time_left=lambda: max(lab.time_left(), ends + patience.used_s - time.monotonic()),
            patience=patience,
        )
    load = PhaseLoad(
        name="pairs",
        seconds=time.monotonic() - start.wall_s,
        cores_missing=patience.cores_missing if patience.counted else cores_missing_since(start),
    )
    return EndToEnd(speed=speed, load=load)


def _of_epochs(length: Length, epochs: float | None, *, is_known: bool = False) -> Length:
    """Return a length with known epochs, and as many validations per epoch as before.

    Args:
        is_known: the epochs were seen, so that they do not vary by seed.
    """
    if not epochs or not length.epochs or (length.by_seed and not is_known):
        return length
    num_validations = length.num_validations * epochs / length.epochs
    return Length(epochs=epochs, num_validations=num_validations)


def chain_of(trials: Sequence[Trial]) -> Interval | None:
    """Multiply the measured gains of the kept rungs.

    Variances of log gains add up, so half-widths combine as the root of the sum of their squares.
    None if no kept rung has a measured gain.
    """
    kept = [trial for trial in trials if trial.verdict.decision is Decision.KEPT]
    speeds = [trial.verdict.speed for trial in kept if trial.verdict.speed is not None]
    if not speeds or any(min(one.low, one.estimate) <= 0 for one in speeds):
        return None
    log_gain = sum(math.log(one.estimate) for one in speeds)
    below = math.hypot(*(math.log(one.estimate / one.low) for one in speeds))
    above = math.hypot(*(math.log(one.high / one.estimate) for one in speeds))
    return Interval(
        estimate=math.exp(log_gain),
        low=math.exp(log_gain - below),
        high=math.exp(log_gain + above),
    )


def over_default(ratio: Interval, trials: Sequence[Trial]) -> float | None:
    """Return a ratio against what `train` does by default, for a job that switches that off.

    The gains of the kept rungs that are part of the default are divided out.
    """
    of_default = chain_of([trial for trial in trials if trial.rung in OF_DEFAULT])
    return None if of_default is None else ratio.estimate / of_default.estimate


def unpaired_ratio(before_s: float, after_s: float) -> Interval:
    """Return the ratio of two timings that are no pair, within what two timings may differ by."""
    ratio = before_s / after_s
    return Interval(estimate=ratio, low=ratio / FAR_APART, high=ratio * FAR_APART)


def quoted_ratio(
    timed: Interval,
    chain: Interval | None,
    *,
    runs_s: Sequence[float],
    source: RatioFrom = RatioFrom.PAIRS,
) -> Ratio:
    """Choose the ratio to quote: where measurements disagree, the smallest.

    Two timings of the original job that are far apart are from different loads of the machine, so
    the shorter one is compared with the result only if there are no gains of rungs, each of which
    was timed at one load.

    Args:
        timed: the ratio from pairs, or from other timings of both.
        chain: product of the kept rungs' gains; None: unknown.
        runs_s: timings of the original job, the last one that of `timed`; one if there is no other.
        source: of `timed`.
    """
    candidates = {source: timed}
    are_far = max(runs_s) > FAR_APART * min(runs_s)
    is_other = chain is not None and (
        _are_apart(timed, chain) or (are_far and chain.estimate < timed.estimate)
    )
    if is_other and chain is not None:
        candidates[RatioFrom.CHAIN] = chain
    if are_far and chain is None:
        candidates[RatioFrom.SHORTER] = _scaled(timed, min(runs_s) / runs_s[-1])
    quoted = min(candidates, key=lambda one: candidates[one].estimate)
    return Ratio(candidates[quoted], is_other, quoted)


def _are_apart(first: Interval, second: Interval) -> bool:
    return first.low > second.high or second.low > first.high


def _scaled(interval: Interval, factor: float) -> Interval:
    return replace(
        interval,
        estimate=factor * interval.estimate,
        low=factor * interval.low,
        high=factor * interval.high,
    )

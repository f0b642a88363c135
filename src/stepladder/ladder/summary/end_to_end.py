"""The headline of a climb: the original job and the result, timed in turn after the climb."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from stepladder.ladder.climb import Climb
from stepladder.ladder.limits.guard import TrialFailed, Watchdog, faults_told, guarded
from stepladder.ladder.summary.climb_summary import FAR_APART
from stepladder.ladder.timing.speedup import Length, Speed, length_of, measure_speed
from stepladder.machine import Usage, cores_missing_since
from stepladder.records.climb import Baseline, PhaseLoad
from stepladder.records.ladder import Decision, Interval, Trial

_LEAST_S: Final = 20.0
"""Seconds for the pairs, even if the budget has ended: a headline needs them."""
OF_DEFAULT: Final = frozenset(
    {"cached_features", "channels_last", "fused_optimizer", "loader_threads"}
)
"""Rungs that `train` takes by itself, unless `auto` is off (`training/setup/automatic.py`)."""
_BUDGET_FRAC: Final = 0.05  # of the budget, if that is more


@dataclass(frozen=True, kw_only=True)
class EndToEnd:
    """Original job and result, timed in turn.

    Attributes:
        speed: the speed-up, with bounds; times are means over the pairs.
        load: other processes' use of the cores meanwhile.
    """

    speed: Speed
    load: PhaseLoad


class Ratio(NamedTuple):
    """The ratio that is quoted.

    Attributes:
        bounds: the ratio with its bounds.
        is_other_chain: whether the kept rungs' gains multiply to another ratio, beyond the bounds.
    """

    bounds: Interval
    is_other_chain: bool


def time_in_pairs(climbing: Climb, baseline: Baseline, *, epochs: float) -> EndToEnd | None:
    """Time the original job and the result in interleaved blocks; None if that failed.

    A recipe that compiles is not timed again, as one timing would compile the model twice.

    Args:
        baseline: has the epochs of the original job.
        epochs: epochs of the final training.
    """
    lab, before, after = climbing.lab, climbing.lab.job.recipe, climbing.recipe
    if before == after or before.device.compile or after.device.compile:
        return None
    allowed_s = max(_LEAST_S, _BUDGET_FRAC * lab.budget_s)
    ends = time.monotonic() + allowed_s
    start = Usage.now()
    watchdog = Watchdog(time_left=lab.time_left)
    with suppress(TrialFailed), faults_told("timing the result failed:"), guarded(watchdog):
        speed = measure_speed(
            lab,
            climbing.profiles[0],
            (before, _of_epochs(length_of(lab, before), baseline.epochs)),
            (after, _of_epochs(length_of(lab, after), epochs, is_known=True)),
            folder=lab.cache / "end_to_end",
            watchdog=watchdog,
            time_left=lambda: max(lab.time_left(), ends - time.monotonic()),
        )
        load = PhaseLoad(
            name="pairs",
            seconds=time.monotonic() - start.wall_s,
            cores_missing=cores_missing_since(start),
        )
        return EndToEnd(speed=speed, load=load)
    return None


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


def quoted_ratio(paired: Interval, chain: Interval | None, *, runs_s: Sequence[float]) -> Ratio:
    """Choose the ratio to quote: where measurements disagree, the smallest.

    Args:
        paired: the ratio from pairs.
        chain: product of the kept rungs' gains; None: unknown.
        runs_s: timings of the original job, the last one from the pairs.
    """
    candidates = [paired]
    is_other = chain is not None and _are_apart(paired, chain)
    if is_other and chain is not None:
        candidates.append(chain)
    if max(runs_s) > FAR_APART * min(runs_s):
        candidates.append(_scaled(paired, min(runs_s) / runs_s[-1]))
    return Ratio(min(candidates, key=lambda one: one.estimate), is_other)


def _are_apart(first: Interval, second: Interval) -> bool:
    return first.low > second.high or second.low > first.high


def _scaled(interval: Interval, factor: float) -> Interval:
    return replace(
        interval,
        estimate=factor * interval.estimate,
        low=factor * interval.low,
        high=factor * interval.high,
    )

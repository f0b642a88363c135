"""Text of the result of a climb: the original job compared with the final training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stepladder.ladder.summary.wording import (
    LABEL_WIDTH,
    WIDTH,
    baseline_time,
    gain,
    gain_bounds,
    gain_interval,
    loss_decimals,
    loss_interval,
    plus_minus,
    wrapped,
)
from stepladder.records.climb import Baseline, ClimbSummary, RatioFrom
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Aim, Interval
from stepladder.records.profile import Provenance
from stepladder.stats import MIN_BLOCKS
from stepladder.training.output.wording import clean, percent, rough_time

FAR_APART: Final = 1.25
"""Ratio of two timings of one job above which other processes must have slowed one down."""
_MIN_RUNS: Final = 2
_WORTH_SAYING: Final = 1.1
ONE_EACH: Final = "from a single training run each"


def end_line(climb: Mapping[str, Any], width: int = WIDTH) -> str:
    """Return the last line, from climb.json: measured from end to end, not a product of gains.

    Raises:
        DataError: if a value is not a number.
    """
    label = "end to end".ljust(LABEL_WIDTH) if width >= WIDTH else "end to end: "
    text = clean(end_words(from_json(ClimbSummary, climb)))
    return wrapped(f" {label}{text}", width, indent=len(label) + 1 if width >= WIDTH else 4)


def end_words(climb: ClimbSummary) -> str:
    """Return the result: `240× (24 min → 6.1 s), test 75.0 → 75.3 % (661 pictures, …), …`."""
    before, after = climb.baseline, climb.result
    parts = [headline_words(climb)]
    if before is None or after is None:
        return parts[0]
    if climb.is_as_written:
        return ", ".join([*parts, *_as_written(climb)])
    if before.test_accuracy is not None and after.test_accuracy is not None:
        shares = f"{100 * before.test_accuracy:.1f} → {100 * after.test_accuracy:.1f} %"
        parts.append(f"test {shares}{_read_once(climb)}")
    if climb.test_change is not None:
        parts.append(f"difference {plus_minus(climb.test_change)} {_each_once(climb)}")
    elif climb.loss_change is not None:
        parts += _loss_parts(climb, climb.loss_change, is_first=len(parts) == 1)
    elif climb.num_test:
        parts += _not_compared(climb)
    if climb.aim is Aim.ACCURACY:  # accuracy comes first
        parts = [
            *errors_words(climb),
            *parts[1:],
            f"time {times_words(climb)}{noise_words(climb)}",
        ]
    if climb.untried:
        parts.append(f"not tried, or not tried again, for lack of time: {', '.join(climb.untried)}")
    return ", ".join(parts)


def headline_words(climb: ClimbSummary) -> str:
    """Return the speed-up, the times that it is the ratio of, and what disagrees with it.

    `154× [140, 168] from 8 pairs (18 min → 7.0 s; the original job took 15 min and 18 min)`; if
    nothing was kept, that and the time.
    """
    if climb.baseline is None or climb.result is None:
        return "not measured: the climb did not finish"
    if climb.is_as_written:
        return f"{unchanged_words(climb)}, {rough_time(climb.result.total_s)}"
    times = f"{times_words(climb)}{noise_words(climb)}"
    if climb.speedup is None:
        return times
    ratio = " ".join(filter(None, (ratio_words(climb), pairs_words(climb))))
    return f"{', '.join(filter(None, (ratio, over_seeds_words(climb))))} ({times})"


def errors_words(climb: ClimbSummary) -> tuple[str, ...]:
    """Return errors before and after: `training error 41.0 → 2.1 %`, `held-out error 43 → 30 %`."""
    before, after = climb.fit_before, climb.fit_after
    if before is None or after is None:
        return ()
    what = "loss" if before.is_loss else "error"
    pairs = {
        f"training {what}": (before.training, after.training),
        f"held-out {what}": (before.held_out, after.held_out),
    }
    if before.is_loss:
        decimals = loss_decimals(before.held_out)
        return tuple(
            f"{name} {a:.{decimals}f} → {b:.{decimals}f}" for name, (a, b) in pairs.items()
        )
    return tuple(f"{name} {100 * a:.1f} → {100 * b:.1f} %" for name, (a, b) in pairs.items())


def _not_compared(climb: ClimbSummary) -> list[str]:
    """Return the test accuracy of the result, and why it is not compared."""
    why_not = climb.why_not_compared or "not compared"
    after = climb.result.test_accuracy if climb.result is not None else None
    before = climb.baseline.test_accuracy if climb.baseline is not None else None
    if after is None or before is not None:
        return [why_not if after is not None else f"test {why_not}"]
    return [f"test {percent(after)}{_read_once(climb)}", why_not]


def _loss_parts(climb: ClimbSummary, change: Interval, *, is_first: bool) -> list[str]:
    losses, read_once = losses_words(climb), _read_once(climb) if is_first else ""
    if not losses or climb.baseline is None:
        return [f"test loss {loss_interval(change)}{read_once}"]
    difference = loss_interval(change, climb.baseline.test_loss)
    return [f"test loss {losses}{read_once}", f"difference {difference} {_each_once(climb)}"]


def _each_once(climb: ClimbSummary) -> str:
    """Return what the difference is based on: its bounds cover the examples, but not the seeds."""
    return ONE_EACH + (", identical up to rounding" if climb.learns_alike else "")


def times_words(climb: ClimbSummary) -> str:
    """Return both times, from the pairs if there are any: `24 min → 6.1 s`.

    The first is a range if it depends on when early stopping ends the original job.
    """
    if climb.baseline is None or climb.result is None:
        return ""
    paired_s = climb.result.paired_s
    after_s = climb.result.total_s if paired_s is None else paired_s
    return f"{baseline_time(climb.baseline)} → {rough_time(after_s)}"


def ratio_words(climb: ClimbSummary) -> str:
    """Return the speed-up, with its bounds if it was measured in pairs: `154× [140, 168]`."""
    if climb.speedup_bounds is not None:
        return gain_interval(climb.speedup_bounds)
    return gain(climb.speedup) if climb.speedup is not None else "unknown"


def pairs_words(climb: ClimbSummary) -> str:
    """Return how many pairs the ratio is from: `from 8 pairs`; empty if it is not from pairs."""
    if not climb.num_pairs or climb.speedup_from is RatioFrom.CHAIN:
        return ""
    return f"from {_pairs(climb.num_pairs)}"


def over_seeds_words(climb: ClimbSummary) -> str:
    """Return the speed-up over the seeds of the original job: `90 to 160× over its seeds`.

    Empty if early stopping does not decide its length.
    """
    low, high = climb.speedup_low, climb.speedup_high
    if climb.is_as_written or low is None or high is None:
        return ""
    is_assumed = climb.baseline is not None and climb.baseline.epochs_are is Provenance.ASSUMED
    of_what = "over its possible epochs" if is_assumed else "over its seeds"
    return f"{gain_bounds(low, high)} {of_what}"


def is_within_noise(climb: ClimbSummary) -> bool:
    """Return True if the bounds contain 1, or the result is within the original job's timings."""
    bounds = climb.speedup_bounds
    if bounds is not None:
        return bounds.low <= 1 <= bounds.high
    runs_s = _runs_s(climb)
    if climb.result is None or not runs_s:
        return False
    return min(runs_s) <= climb.result.total_s <= max(runs_s)


def default_words(climb: ClimbSummary) -> str:
    """Return what the speed-up is against the default of `train`; empty if that is the job."""
    if climb.over_default is None:
        return ""
    return (
        "Against the default of `stepladder train`, which the original job switches off "
        f"(auto: false), the result is about {gain(climb.over_default)} as fast."
    )


def noise_words(climb: ClimbSummary) -> str:
    """Return what is in doubt about the speed-up, and how far its timings lie apart.

    Each part begins with a semicolon; empty if there is nothing.
    """
    return "".join(f"; {part}" for part in (*doubts(climb), spread_words(climb)) if part)


def doubts(climb: ClimbSummary) -> tuple[str, ...]:
    """Return what is in doubt about the speed-up, a sentence each without its period.

    Measurements that disagree by more than their bounds allow, too few pairs, or none.
    """
    if climb.result is None or climb.is_as_written:
        return ()
    return tuple(filter(None, (_few_pairs(climb), _other_chain(climb), _far_runs(climb))))


def spread_words(climb: ClimbSummary) -> str:
    """Return the timings of the original job, if worth it and not in doubt; else empty."""
    runs_s = _runs_s(climb)
    if not runs_s or _far_runs(climb) or max(runs_s) <= _WORTH_SAYING * min(runs_s):
        return ""
    return _runs_words(runs_s)


def _few_pairs(climb: ClimbSummary) -> str:
    """Return that the pairs are too few, or why no pair was timed; else empty."""
    if climb.num_pairs:
        few = f"only {_pairs(climb.num_pairs)} were timed, fewer than {MIN_BLOCKS}"
        return f"{few}, because the time ran out" if climb.num_pairs < MIN_BLOCKS else ""
    if climb.why_no_pairs is None:
        return ""
    return f"the ratio is not from pairs timed in turn: {climb.why_no_pairs}"


def _other_chain(climb: ClimbSummary) -> str:
    """Return that the kept rungs' gains multiply to another ratio; else empty."""
    if not climb.has_other_chain or climb.chain is None:
        return ""
    multiply = f"the kept rungs' gains multiply to {gain_interval(climb.chain)}"
    return f"{_timed_words(climb)}{multiply}, the smaller is shown"


def _timed_words(climb: ClimbSummary) -> str:
    """Return what the timings gave, if another ratio is shown: `8 pairs gave 154× [140, 168]; `."""
    if climb.speedup_from is not RatioFrom.CHAIN or climb.baseline is None or climb.result is None:
        return ""
    if climb.paired is not None:
        return f"{_pairs(climb.num_pairs)} gave {gain_interval(climb.paired)}; "
    after_s = climb.result.paired_s or climb.result.total_s
    return f"the times of both give {gain(climb.baseline.total_s / after_s)}; "


def _far_runs(climb: ClimbSummary) -> str:
    """Return that the timings of the original job disagree, or hide the effect; else empty."""
    runs_s = _runs_s(climb)
    if is_within_noise(climb):
        noise = "the noise is larger than the effect"
        return f"{_runs_words(runs_s)}: {noise}" if runs_s else noise
    if not runs_s or max(runs_s) <= FAR_APART * min(runs_s):
        return ""
    why = f"{_runs_words(runs_s)}: other processes used the machine"
    is_other = climb.speedup_from is RatioFrom.CHAIN or _is_longer(climb.baseline, runs_s)
    return why if is_other else f"{why}, so the shorter time is used"


def _is_longer(baseline: Baseline | None, runs_s: tuple[float, ...]) -> bool:
    """Return True if the time of the original job is its last timing, and not the shorter one."""
    return baseline is not None and baseline.total_s == runs_s[-1] > min(runs_s)


def _runs_words(runs_s: tuple[float, ...]) -> str:
    return f"the original job took {' and '.join(rough_time(seconds) for seconds in runs_s)}"


def _pairs(num: int) -> str:
    return f"{num} pair{'' if num == 1 else 's'}"


def _runs_s(climb: ClimbSummary) -> tuple[float, ...]:
    """Return the timings of the original job; empty if there are fewer than two."""
    runs_s = climb.baseline.runs_s if climb.baseline is not None else ()
    return runs_s if len(runs_s) >= _MIN_RUNS else ()


def unchanged_words(climb: ClimbSummary) -> str:
    """Return that nothing was kept: `nothing paid off: the original job`."""
    what = "nothing helped" if climb.aim is Aim.ACCURACY else "nothing paid off"
    if not climb.untried:
        return f"{what}: the original job"
    num = len(climb.untried)
    left = f"a longer --budget tries {num} rung{'' if num == 1 else 's'} more"
    return f"nothing was kept before the budget ran out ({left}): the original job"


def examples_words(climb: ClimbSummary) -> str:
    """Return the size of the test split: `661 pictures`, `1 example`."""
    what = "picture" if climb.are_pictures else "example"
    return f"{climb.num_test:,} {what}{'' if climb.num_test == 1 else 's'}"


def losses_words(climb: ClimbSummary) -> str:
    """Return the test loss before and after: `1.342 → 1.218`; empty if one is not known."""
    before = climb.baseline.test_loss if climb.baseline is not None else None
    after = climb.result.test_loss if climb.result is not None else None
    if before is None or after is None:
        return ""
    decimals = loss_decimals(before)
    return f"{before:.{decimals}f} → {after:.{decimals}f}".replace("-", "−")


def _as_written(climb: ClimbSummary) -> list[str]:
    accuracy = climb.result.test_accuracy if climb.result is not None else None
    return [] if accuracy is None else [f"test {percent(accuracy)}{_read_once(climb)}"]


def _read_once(climb: ClimbSummary) -> str:
    return f" ({examples_words(climb)}, read once)" if climb.num_test else ""

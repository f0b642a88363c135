"""Confidence intervals of speed-ups, from paired blocks and from epochs of paired seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepladder.records.ladder import Interval
from stepladder.stats.estimates import mean_estimate
from stepladder.stats.student import t_quantile

MIN_BLOCKS = 8


def speedup_interval(
    baseline_s: ArrayLike, candidate_s: ArrayLike, *, confidence: float = 0.95
) -> Interval:
    """Return an interval for the speed-up of the candidate, from paired blocks.

    Uses Student's t on the mean log ratio, so that 2x faster and 2x slower are equally far from 1.
    (A percentile bootstrap covers too little with so few blocks.)

    Args:
        baseline_s, candidate_s: block times in seconds, shape (num_blocks,), paired by position.
        confidence: one-sided confidence of each bound, in (0.5, 1).

    Returns:
        Unitless; above 1 is faster.

    Raises:
        ValueError: if the shapes differ or there are fewer than 8 blocks.

    Source: Student 1908, "The Probable Error of a Mean", Biometrika 6(1).
    """
    ratios = _log_ratios(baseline_s, candidate_s)
    if ratios.size < MIN_BLOCKS:
        raise ValueError(f"{ratios.size} blocks are too few: at least {MIN_BLOCKS} are needed")
    estimate = mean_estimate(ratios)
    half = t_quantile(confidence, ratios.size - 1) * estimate.sem
    return _interval(estimate.mean, half, confidence)


def combined_speedup(
    by_block: tuple[ArrayLike, ArrayLike] | None,
    by_seed: tuple[ArrayLike, ArrayLike] | None,
    *,
    confidence: float = 0.95,
    min_blocks: int = MIN_BLOCKS,
) -> Interval:
    """Return an interval for the speed-up of a total with uncertain block times and epochs.

    The variances of both means of log ratios are added; their degrees of freedom combine as

        df = (a + b)^2 / (a^2 / (n - 1) + b^2 / (S - 1)),  a, b: the two variances.

    Args:
        by_block: totals (before, after) of each block at the mean number of epochs, (n,),
            n >= min_blocks; None: the blocks' times are the same before and after.
        by_seed: totals (before, after) of each seed at the mean times of the blocks, (S,), S >= 2;
            None: the number of epochs is fixed.
        confidence: one-sided confidence of each bound, in (0.5, 1).
        min_blocks: 2 or more, if there was not enough time for 8.

    Raises:
        ValueError: if there are neither blocks nor seeds, or too few of them.

    Source: Welch 1947, "The Generalization of 'Student's' Problem", Biometrika 34.
    """
    blocks = None if by_block is None else _log_ratios(*by_block)
    seeds = None if by_seed is None else _log_ratios(*by_seed)
    if blocks is not None and blocks.size < min_blocks:
        raise ValueError(f"{blocks.size} blocks are too few: at least {min_blocks} are needed")
    if seeds is not None and seeds.size < 2:
        raise ValueError(f"{seeds.size} seeds are too few: at least 2 are needed")
    parts = [mean_estimate(part) for part in (blocks, seeds) if part is not None]
    if not parts:
        raise ValueError("there are neither blocks nor seeds")
    sizes = [part.size for part in (blocks, seeds) if part is not None]
    variances = [part.sem**2 for part in parts]
    total = sum(variances)
    if total == 0:
        return _interval(parts[0].mean, 0.0, confidence)
    pairs = zip(variances, sizes, strict=True)
    df = total**2 / sum(variance**2 / (size - 1) for variance, size in pairs)
    half = t_quantile(confidence, df) * math.sqrt(total)
    return _interval(parts[0].mean, half, confidence)


def unpaired_ratio(before_s: ArrayLike, after_s: ArrayLike, *, confidence: float) -> Interval:
    """Return an interval for the ratio of two times, after over before, from separate runs.

    Welch's t on the logarithms of the block times, whose spreads may differ.

    Args:
        before_s, after_s: block times in seconds, (n,) and (m,), 2 or more each.
        confidence: one-sided confidence of each bound, in (0.5, 1).

    Source: Welch 1947, "The Generalization of 'Student's' Problem", Biometrika 34(1-2).
    """
    logs = [np.log(np.asarray(times, dtype=np.float64)) for times in (before_s, after_s)]
    if any(one.size < 2 for one in logs):
        raise ValueError("a ratio of separate runs needs two blocks of each")
    before, after = (mean_estimate(one) for one in logs)
    total = before.sem**2 + after.sem**2
    parts = sum(one.sem**4 / (log.size - 1) for one, log in zip((before, after), logs, strict=True))
    df = total**2 / parts if parts > 0 else math.inf
    half = t_quantile(confidence, df) * math.sqrt(total) if total > 0 else 0.0
    return _interval(after.mean - before.mean, half, confidence)


def choose_num_blocks(
    log_ratios: ArrayLike, *, half_width: float, confidence: float, at_least: int, at_most: int
) -> int:
    """Return how many pairs of blocks are needed for an interval of half_width.

    Only the spread of the pilot matters, not its mean, so that the pilot can be part of the sample;
    a half_width that depends on the mean violates that slightly (tests/laws/test_trials.py).

    Args:
        log_ratios: of the pilot's pairs, (k,), k >= 2.
        half_width: target distance of a bound from the estimate, in log time.
        confidence: one-sided, in (0.5, 1).
        at_least, at_most: limits of the answer.

    Source: Stein 1945, "A Two-Sample Test for a Linear Hypothesis", Ann. Math. Stat. 16(3).
    """
    spread = float(np.std(np.asarray(log_ratios, dtype=np.float64), ddof=1))
    for n in range(at_least, at_most):
        if t_quantile(confidence, n - 1) * spread / math.sqrt(n) <= half_width:
            return n
    return at_most


def autocorrelation_length(times_s: ArrayLike) -> float:
    """Return the integrated autocorrelation length of step times: 1 if they are independent.

        tau = 1 + 2 sum rho_k,  over lags k up to the first whose rho is at or below 0

    Shapes: times_s (n,), in order of the steps; 1 if there are fewer than 8, or all are equal.

    Source: Geyer 1992, "Practical Markov Chain Monte Carlo", Statistical Science 7(4), 3.3.
    """
    values = np.asarray(times_s, dtype=np.float64)
    centred = values - values.mean() if values.size else values
    power = float(centred @ centred)
    if values.size < MIN_BLOCKS or power == 0:
        return 1.0
    tau = 1.0
    for lag in range(1, values.size // 2):
        rho = float(centred[:-lag] @ centred[lag:]) / power
        if rho <= 0:
            break
        tau += 2 * rho
    return tau


def _log_ratios(before_s: ArrayLike, after_s: ArrayLike) -> NDArray[Any]:
    before, after = np.asarray(before_s, np.float64), np.asarray(after_s, np.float64)
    if before.shape != after.shape or before.ndim != 1:
        raise ValueError(f"paired times differ in shape: {before.shape} and {after.shape}")
    if not (np.all(before > 0) and np.all(after > 0)):
        raise ValueError("a time is not above 0")
    ratios: NDArray[Any] = np.log(before) - np.log(after)
    return ratios


def _interval(log_mean: float, half: float, confidence: float) -> Interval:
    return Interval(
        estimate=math.exp(log_mean),
        low=math.exp(log_mean - half),
        high=math.exp(log_mean + half),
        confidence=confidence,
    )

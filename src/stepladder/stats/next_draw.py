"""Bounds for one more draw of a quantity that was drawn a few times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from stepladder.stats.student import t_quantile

MIN_DRAWS = 2
_EACH_SIDE = 0.1
_MIN_FOR_RANKS = 9  # with fewer, not even their minimum and maximum bound the next draw in 80 %


def next_draw_bounds(draws: Sequence[float]) -> tuple[float, float]:
    """Return the 10th and 90th percentile of the next draw, from draws of the same distribution.

    The k-th smallest and the k-th largest of n draws bound the next one with a probability of
    1 - 2 k / (n + 1), whatever the distribution. k is the largest number for which that is at least
    80 %. Below nine draws no k does: the bounds are then those of Student's t on the logarithm,

        exp(m ± t s sqrt(1 + 1 / n)),  m, s: mean and standard deviation of the logarithms,

    or the minimum and maximum, if these are further apart.

    Args:
        draws: two or more, above 0.

    Raises:
        ValueError: if there are fewer, or one is not above 0.
    Source: Wilks 1941, "Determination of Sample Sizes for Setting Tolerance Limits", Annals of
        Mathematical Statistics 12(1); Hahn and Meeker 1991, "Statistical Intervals", 5.4.
    """
    n = len(draws)
    if n < MIN_DRAWS or min(draws) <= 0:
        raise ValueError(f"{n} draws, the lowest of {min(draws, default=0.0)}, have no bounds")
    ordered = sorted(draws)
    if n >= _MIN_FOR_RANKS:
        k = int(_EACH_SIDE * (n + 1) + 1e-9)
        return ordered[k - 1], ordered[-k]
    logs = [math.log(draw) for draw in draws]
    half = t_quantile(1 - _EACH_SIDE, n - 1) * stdev(logs) * math.sqrt(1 + 1 / n)
    middle = fmean(logs)
    return min(ordered[0], math.exp(middle - half)), max(ordered[-1], math.exp(middle + half))

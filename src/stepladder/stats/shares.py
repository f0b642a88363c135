"""Compare two proportions, such as accuracies, on different examples or on the same ones."""

from __future__ import annotations

import math
from statistics import NormalDist

from stepladder.stats.estimates import binomial_sem


def share_difference_sem(first: float, num_first: int, second: float, num_second: int) -> float:
    """Return the standard error of the difference of two proportions on independent examples.

        sqrt(p (1 - p) / n + q (1 - q) / m)

    Args:
        first, second: proportions in [0, 1].
        num_first, num_second: number of examples of each.
    """
    return math.hypot(binomial_sem(first, num_first), binomial_sem(second, num_second))


def wilson_interval(num_right: float, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval of a proportion, also valid for few examples and for 0 and 1.

    Args:
        num_right: number of successes, in [0, n].
        n: number of examples, 1 or more.
        confidence: two-sided, in (0, 1).

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference",
    JASA 22.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = num_right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of two classifiers on the same examples.

    Under the null hypothesis, an example that only one gets right is equally likely to be either's.

    Args:
        only_first, only_second: number of examples that only the first or second gets right.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated
    proportions or percentages", Psychometrika 12; exact by the binomial distribution.
    """
    n, k = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    log_half = -n * math.log(2)
    tail = sum(
        math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + log_half)
        for i in range(k + 1)
    )
    return min(1.0, 2 * tail)

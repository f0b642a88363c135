"""How sure a share is that was counted: k of n."""

from __future__ import annotations

import math
from collections.abc import Callable

ROUNDS = 60
"""Halvings of [0, 1]: more than a float can tell apart."""


def clopper_pearson(k: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Bound a share of which k in n were counted, so that no true share is covered less often.

    Each bound is where the binomial tail beyond what was counted has half of the error left:
    P(X >= k; low) = P(X <= k; high) = (1 - confidence) / 2.

    Args:
        k: how many were counted, 0 to n.
        n: of how many, 1 or more.
        confidence: of both bounds together, in (0, 1).

    Returns:
        (low, high), each in [0, 1].

    Raises:
        ValueError: if k is not in 0 to n, or n is below 1.

    Source: Clopper and Pearson 1934, "The Use of Confidence or Fiducial Limits Illustrated in the
    Case of the Binomial", Biometrika 26(4).
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"{k} of {n} is no share")
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else _root(lambda p: 1 - _cdf(k - 1, n, p) - tail)
    high = 1.0 if k == n else _root(lambda p: tail - _cdf(k, n, p))
    return low, high


def words(k: int, n: int) -> str:
    """Say a count as "57 of 60 (95 %; 86.1 to 99.0 %)": the share, and the bounds around it."""
    if n == 0:
        return "0 of 0"
    low, high = clopper_pearson(k, n)
    return f"{k} of {n} ({100 * k / n:.0f} %; {100 * low:.1f} to {100 * high:.1f} %)"


def _cdf(k: int, n: int, p: float) -> float:
    """Give P(X <= k) of a binomial."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _root(rising: Callable[[float], float]) -> float:
    """Give the zero of a function that rises over [0, 1], by bisection."""
    low, high = 0.0, 1.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2

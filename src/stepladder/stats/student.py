"""Student's t distribution, for any number of degrees of freedom above 0."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_MAX_DF = 1e6  # from here on t is the normal distribution to six digits
_TINY = 1e-300


def t_cdf(t: float, df: float) -> float:
    """Return the probability that a variable with Student's t distribution is at most t.

        P(T <= t) = 1 - I_x(df / 2, 1 / 2) / 2,  x = df / (df + t^2),  for t >= 0

    Args:
        df: degrees of freedom, above 0; may be fractional.
    """
    if df > _MAX_DF:
        return NormalDist().cdf(t)
    tail = _incomplete_beta(df / (df + t * t), df / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


@cache
def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t for a probability in [0.5, 1).

    By bisection, to twelve digits, in a few dozen evaluations.
    """
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability is {probability}, not in [0.5, 1)")
    if df <= 0:
        raise ValueError(f"there are {df} degrees of freedom, not more than 0")
    low, high = 0.0, 1.0
    while t_cdf(high, df) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, df) < probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b).

    Source: Lentz 1976, "Generating Bessel functions in Mie scattering calculations using continued
    fractions", Applied Optics 15(3), on the fraction of Abramowitz and Stegun 26.5.8.
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1000):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or _TINY)
        c = 1 + term / c or _TINY
        value *= c * d
        if abs(1 - c * d) < 1e-15:
            break
    return front * (value - 1)

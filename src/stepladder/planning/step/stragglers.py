"""How much longer the slowest of several devices takes than one on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stepladder.stats.maxima import expected_max

Floats = NDArray[np.float64]


class Spread(StrEnum):
    """How the times of a step are distributed over devices and steps."""

    NORMAL = "normal"
    LOGNORMAL = "lognormal"


def slowest_frac(num: int, spread_frac: float, spread: Spread = Spread.NORMAL) -> float:
    """Return the expected delay of the slowest of N devices over the mean step, z_N s.

    Lognormal: exp(z_N w - w² / 2) - 1, in which w² = ln(1 + s²).

    Args:
        num: N, 1 or more.
        spread_frac: s, standard deviation of a step over its mean.

    Source: David and Nagaraja 2003, "Order Statistics", 3rd ed., section 3.1.
    """
    z = expected_max(num)
    if spread is Spread.NORMAL:
        return z * spread_frac
    width = math.sqrt(math.log1p(spread_frac**2))
    return max(0.0, math.exp(z * width - width**2 / 2) - 1)


def slowest_of(times_s: Sequence[float], num: int) -> float:
    """Return the expected largest of N draws from measured times, in seconds.

    E max = sum of x_i ((i / m)^N - ((i - 1) / m)^N),  x ascending
    """
    values = np.sort(np.asarray(times_s, float))
    ranks = np.arange(len(values) + 1) / len(values)
    return float(np.sum(values * np.diff(ranks**num)))

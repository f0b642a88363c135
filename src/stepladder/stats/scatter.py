"""Noise of the points of a curve around its trend."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

_NORMAL_MAD = 1.4826  # standard deviation of a normal variable over its median absolute deviation


def scatter(values: ArrayLike) -> float | None:
    """Estimate the standard deviation of a curve's points around its trend.

        e_i = y_i - (y_(i-1) + y_(i+1)) / 2,  sd = 1.4826 median |e_i| / sqrt(1.5)

    A linear trend cancels, so that a fast-falling loss does not count as noisy. The median is
    robust to a few jumps.

    Args:
        values: in order of time, evenly spaced; values that are not finite are ignored.

    Returns:
        In the unit of the values; None for fewer than 4 points.

    Source: Gasser, Sroka and Jennen-Steinmetz 1986, "Residual variance and residual pattern in
    nonlinear regression", Biometrika 73(3).
    """
    y = np.asarray(values, dtype=np.float64)
    y = y[np.isfinite(y)]
    if y.size < 4:
        return None
    residuals = y[1:-1] - (y[:-2] + y[2:]) / 2
    return float(_NORMAL_MAD * np.median(np.abs(residuals)) / math.sqrt(1.5))


def smoothed(values: ArrayLike) -> list[float]:
    """Return the centred moving average of three points; the ends are unchanged.

    Fewer than 7 points are returned unchanged.
    """
    y = [float(value) for value in np.asarray(values, dtype=np.float64)]
    if len(y) < 7:
        return y
    inner = [sum(y[idx - 1 : idx + 2]) / 3 for idx in range(1, len(y) - 1)]
    return [y[0], *inner, y[-1]]

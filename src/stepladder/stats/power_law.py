"""Fit a power law to errors that fall with the number of examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_SIZES = 3
_EXPONENTS = np.linspace(0.05, 1.0, 39)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """error(n) = a n^-b + c, with a, c >= 0; arrays hold one value per fit."""

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    c: NDArray[np.float64]

    def at(self, n: float) -> NDArray[np.float64]:
        """Return the error at n examples, one value per fit."""
        return np.asarray(self.a * n**-self.b + self.c)


def fit_power_law(sizes: ArrayLike, errors: ArrayLike) -> PowerLaw:
    """Fit a power law to each row of errors by least squares.

    For each exponent of a grid in [0.05, 1], a and c have a closed-form solution with neither below
    0; the exponent with the smallest residual is used. If several fit equally well, the smallest is
    used, which predicts the largest gain of more data; the interval shows how uncertain that is.

    Args:
        sizes: numbers of examples, at least three different ones, (k,).
        errors: measured at these sizes, (k,) or (m, k).

    Raises:
        ValueError: if there are fewer than three different sizes, or shapes differ.

    Source: Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically",
    arXiv:1712.00409; it measured exponents of 0.07 to 0.35, and theory predicts 0.5 and 1.
    """
    n = np.asarray(sizes, np.float64)
    y = np.atleast_2d(np.asarray(errors, np.float64))  # (m, k)
    if n.ndim != 1 or y.shape[1] != n.size:
        raise ValueError(f"sizes {n.shape} and errors {y.shape} do not match")
    if len(np.unique(n)) < MIN_SIZES:
        raise ValueError(f"{len(np.unique(n))} different sizes: at least {MIN_SIZES} are needed")
    best_residual = np.full(len(y), np.inf)
    a, b, c = (np.zeros(len(y)) for _ in range(3))
    for exponent in _EXPONENTS:
        slope, floor = _line(n**-exponent, y)
        residual = ((slope[:, None] * n**-exponent + floor[:, None] - y) ** 2).sum(1)
        is_better = residual < best_residual * (1 - 1e-9)
        best_residual = np.where(is_better, residual, best_residual)
        a = np.where(is_better, slope, a)
        b = np.where(is_better, exponent, b)
        c = np.where(is_better, floor, c)
    return PowerLaw(a=a, b=b, c=c)


def _line(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit y = slope x + floor with both at least 0, one fit per row of y."""
    centred = x - x.mean()
    slope = (y @ centred) / (centred @ centred)
    floor = y.mean(1) - slope * x.mean()
    through_zero = (y @ x) / (x @ x)
    slope, floor = (
        np.where(floor < 0, through_zero, slope),
        np.where(floor < 0, 0.0, floor),
    )
    flat = slope < 0  # errors that do not fall
    return np.where(flat, 0.0, slope), np.where(flat, y.mean(1), floor)

"""Means and proportions with their standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error, in the unit of the values."""

    mean: float
    sem: float


def binomial_sem(p: float, n: int) -> float:
    """Return the standard error of a proportion, such as an accuracy, measured on n examples.

    Args:
        p: the proportion, in [0, 1].
        n: number of examples; the error is infinite for 0.
    """
    return math.sqrt(p * (1 - p) / n) if n > 0 else math.inf


def mean_estimate(values: ArrayLike) -> Estimate:
    """Return the mean of independent values and its standard error.

    For one value the error is unknown, and infinite; for no value the mean is NaN.

    Shapes: values (n,).
    """
    array = np.asarray(values, dtype=np.float64)
    n = array.size
    if n == 0:
        return Estimate(math.nan, math.inf)
    if n == 1:
        return Estimate(float(array[0]), math.inf)
    return Estimate(float(array.mean()), float(array.std(ddof=1) / math.sqrt(n)))


def paired_improvement(before: ArrayLike, after: ArrayLike) -> Estimate:
    """Estimate the decrease of losses, from the same examples before and after.

    The spread between examples cancels, so that the error is far smaller than that of either mean.

    Shapes: before, after (n,), paired by position; positive means better.

    Raises:
        ValueError: if the shapes differ.
    """
    old, new = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if old.shape != new.shape:
        raise ValueError(f"paired losses differ in shape: {old.shape} and {new.shape}")
    return mean_estimate(old - new)

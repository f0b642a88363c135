"""What can be read off inputs at once: kernel ridge regression, judged on what it has not seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def kernel(rows: ArrayLike, columns: ArrayLike | None = None) -> Floats:
    """Compare examples: half by direction, half by nearness.

        K = x y / mean |x|^2 / 2 + exp(-|x - y|^2 / median |x - x'|^2) / 2

    after the mean and the overall scale of the columns are taken off.

    Args:
        rows: (n, d).
        columns: (m, d), from which scale and median are taken; None: the rows themselves.

    Returns:
        (n, m).
    """
    y = np.asarray(rows if columns is None else columns, np.float64)
    x = np.asarray(rows, np.float64)
    mean = y.mean(axis=0)
    x, y = x - mean, y - mean
    scale = float((y**2).sum(axis=1).mean()) or 1.0
    between = _distances(y, y)
    apart = between[np.triu_indices(len(y), 1)]
    median = float(np.median(apart)) if apart.size else 1.0
    near = np.exp(-_distances(x, y) / (median or 1.0))
    compared: Floats = (x @ y.T) / scale / 2 + near / 2
    return compared


def leave_one_out(kernel_matrix: Floats, targets: ArrayLike, *, ridge: float = 1.0) -> Floats:
    """Predict each example from all the others, in closed form.

        y_i - (y - S y)_i / (1 - S_ii),  S = C K C (C K C + ridge)^-1 + 1 / n,  C takes the mean off

    Args:
        kernel_matrix: (n, n).
        targets: (n, k).
        ridge: as a share of the kernel's mean diagonal, above 0.

    Returns:
        (n, k).

    Source: Allen 1974, Technometrics 16(1) (PRESS); Hastie, Tibshirani and Friedman 2009, 7.10.
    """
    y = np.asarray(targets, np.float64)
    smoother = _smoother(kernel_matrix, ridge)
    own = np.minimum(np.diag(smoother), 1 - 1e-9)
    shape = (-1, *(1,) * (y.ndim - 1))
    predicted: Floats = y - (y - smoother @ y) / (1 - own).reshape(shape)
    return predicted


def probe_accuracies(
    kernel_matrix: Floats, labels: ArrayLike, *, num_draws: int, seed: int, ridge: float = 1.0
) -> tuple[float, Floats]:
    """Judge a probe of classes on what it has not seen, and again with labels dealt at random.

    Args:
        kernel_matrix: (n, n).
        labels: (n,).
        num_draws: how often labels are dealt anew.

    Returns:
        The balanced accuracy with the labels as they are, and those with dealt ones, (num_draws,).
    """
    classes, marks = np.unique(np.asarray(labels), return_inverse=True)
    smoother = _smoother(kernel_matrix, ridge)
    own = np.minimum(np.diag(smoother), 1 - 1e-9)[:, None]
    random = np.random.default_rng(seed)

    def accuracy(some: NDArray[Any]) -> float:
        y = np.eye(len(classes))[some]
        predicted = (y - (y - smoother @ y) / (1 - own)).argmax(axis=1)
        hits = np.bincount(some, weights=predicted == some, minlength=len(classes))
        return float(np.mean(hits / np.bincount(some, minlength=len(classes))))

    dealt = np.array([accuracy(random.permutation(marks)) for _ in range(num_draws)])
    return accuracy(marks), dealt


def permutation_p(value: float, dealt: ArrayLike) -> float:
    """Give the chance that a value as large comes up where labels mean nothing.

        (1 + number of draws at least as large) / (1 + draws)

    Source: Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero", SAGMB 9(1).
    """
    draws = np.asarray(dealt, np.float64)
    return (1 + int((draws >= value).sum())) / (1 + draws.size)


def _smoother(kernel_matrix: Floats, ridge: float) -> Floats:
    n = len(kernel_matrix)
    centred = kernel_matrix - kernel_matrix.mean(axis=0)
    centred = centred - centred.mean(axis=1, keepdims=True)
    strength = ridge * max(float(np.trace(centred)) / n, 1e-12)
    smoother: Floats = np.linalg.solve(centred + strength * np.eye(n), centred).T + 1 / n
    return smoother


def _distances(x: Floats, y: Floats) -> Floats:
    """Give squared distances, (n, m)."""
    squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1)[None, :] - 2 * x @ y.T
    apart: Floats = np.maximum(squared, 0.0)
    return apart

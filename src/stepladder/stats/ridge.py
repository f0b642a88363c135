"""Kernel ridge regression, evaluated on held-out examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def kernel(rows: ArrayLike, columns: ArrayLike | None = None) -> Floats:
    """Return the kernel matrix of examples: half linear, half Gaussian.

        K = x y / mean |x|^2 / 2 + exp(-|x - y|^2 / median |x - x'|^2) / 2

    after subtracting the mean of the columns.

    Args:
        rows: (n, d).
        columns: (m, d), for mean, scale and median; None: the rows themselves.

    Returns:
        (n, m).
    """
    y = np.asarray(rows if columns is None else columns, np.float64)
    x = np.asarray(rows, np.float64)
    mean = y.mean(axis=0)
    x, y = x - mean, y - mean
    scale = float((y**2).sum(axis=1).mean()) or 1.0
    between = squared_distances(y, y)
    apart = between[np.triu_indices(len(y), 1)]
    median = float(np.median(apart)) if apart.size else 1.0
    near = np.exp(-squared_distances(x, y) / (median or 1.0))
    compared: Floats = (x @ y.T) / scale / 2 + near / 2
    return compared


def predict(rows: ArrayLike, targets: ArrayLike, unseen: ArrayLike) -> Floats:
    """Fit kernel ridge regression to rows (n, d), and predict the targets of unseen rows.

    The ridge is the mean diagonal of the kernel. No offset is fitted.

    Shapes: targets (n, k), unseen (m, d); returns (m, k).
    """
    known, y = np.asarray(rows, np.float64), np.asarray(targets, np.float64)
    matrix = kernel(np.concatenate([known, np.asarray(unseen, np.float64)]), known)
    within, across = matrix[: len(known)], matrix[len(known) :]
    strength = float(np.trace(within)) / len(known)
    predicted: Floats = across @ np.linalg.solve(within + strength * np.eye(len(known)), y)
    return predicted


def leave_one_out(kernel_matrix: Floats, *, ridge: float = 1.0) -> Callable[[ArrayLike], Floats]:
    """Return a function that predicts each example from all others, in closed form.

        y_i - (y - S y)_i / (1 - S_ii),  S = C K C (C K C + ridge)^-1 + 1 / n,  C centres

    Args:
        kernel_matrix: (n, n).
        ridge: as a share of the kernel's mean diagonal, above 0.

    Returns:
        A function from targets (n, k) to their predictions (n, k).

    Source: Allen 1974, Technometrics 16(1) (PRESS); Hastie, Tibshirani and Friedman 2009, 7.10.
    """
    num = len(kernel_matrix)
    centred = kernel_matrix - kernel_matrix.mean(axis=0)
    centred = centred - centred.mean(axis=1, keepdims=True)
    strength = ridge * max(float(np.trace(centred)) / num, 1e-12)
    smoother = np.linalg.solve(centred + strength * np.eye(num), centred).T + 1 / num
    own = np.minimum(np.diag(smoother), 1 - 1e-9)[:, None]

    def predict_left_out(targets: ArrayLike) -> Floats:
        y = np.asarray(targets, np.float64)
        predicted: Floats = y - (y - smoother @ y) / (1 - own)
        return predicted

    return predict_left_out


def probe_accuracies(
    kernel_matrix: Floats, labels: ArrayLike, *, num_draws: int, seed: int
) -> tuple[float, Floats]:
    """Return the leave-one-out accuracy of a probe of classes, and with permuted labels.

    Args:
        kernel_matrix: (n, n).
        labels: (n,).
        num_draws: number of permutations of the labels.

    Returns:
        The balanced accuracy with the given labels, and those with permuted ones, (num_draws,).
    """
    classes, marks = np.unique(np.asarray(labels), return_inverse=True)
    predict_left_out = leave_one_out(kernel_matrix)
    random = np.random.default_rng(seed)

    def accuracy(some: NDArray[Any]) -> float:
        predicted = predict_left_out(np.eye(len(classes))[some]).argmax(axis=1)
        hits = np.bincount(some, weights=predicted == some, minlength=len(classes))
        return float(np.mean(hits / np.bincount(some, minlength=len(classes))))

    dealt = np.array([accuracy(random.permutation(marks)) for _ in range(num_draws)])
    return accuracy(marks), dealt


def permutation_p(value: float, dealt: ArrayLike) -> float:
    """Return the permutation p-value of a value: the chance of one as large with permuted labels.

        (1 + number of draws at least as large) / (1 + draws)

    Source: Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero", SAGMB 9(1).
    """
    draws = np.asarray(dealt, np.float64)
    return (1 + int((draws >= value).sum())) / (1 + draws.size)


def squared_distances(x: Floats, y: Floats) -> Floats:
    """Return the squared distances between rows (n, d) and rows (m, d), (n, m)."""
    squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T
    apart: Floats = np.maximum(squared, 0.0)
    return apart

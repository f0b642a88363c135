"""Shares of classes in a sample without labels, and weights that give two samples equal shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_EM_STEPS = 200
_LEAST_CHANGE = 1e-6


def class_log_densities(features: ArrayLike, labels: ArrayLike, at: ArrayLike) -> Floats:
    """Return the log density of each class at some points, up to a constant that all share.

    A normal distribution for each class, with one covariance for all, shrunk towards a multiple of
    the identity by d / (n - k + d).

    Args:
        features: (n, d).
        labels: (n,), in [0, k), each class at least once.
        at: (m, d).

    Returns:
        (m, k).

    Source: Friedman 1989, "Regularized Discriminant Analysis", J. Am. Stat. Assoc. 84.
    """
    x, points = np.asarray(features, np.float64), np.asarray(at, np.float64)
    marks = np.asarray(labels, np.int64)
    n, d = x.shape
    k = int(marks.max()) + 1
    means = np.stack([x[marks == label].mean(axis=0) for label in range(k)])  # (k, d)
    within = x - means[marks]
    freedom = max(1, n - k)
    covariance = within.T @ within / freedom
    shrinkage = d / (freedom + d)
    mean_variance = float(np.trace(covariance)) / d or 1.0
    covariance = (1 - shrinkage) * covariance + shrinkage * mean_variance * np.eye(d)
    root = np.linalg.cholesky(covariance)
    away = np.linalg.solve(root, (points[:, None, :] - means).reshape(-1, d).T)  # (d, m k)
    density: Floats = -0.5 * (away**2).sum(axis=0).reshape(len(points), k)
    return density


def memberships(log_densities: Floats, start: ArrayLike, *, is_known: bool) -> Floats:
    """Return the probability of each class for each example of a sample without labels.

    Args:
        log_densities: of each class at each example, (m, k).
        start: shares of the classes, (k,); a class with a share of 0 keeps it.
        is_known: whether these are the shares of the sample; if not, they are estimated by EM.

    Returns:
        (m, k); rows add up to 1, and their mean estimates the shares.

    Source: Saerens, Latinne and Decaestecker 2002, "Adjusting the Outputs of a Classifier to New a
    Priori Probabilities", Neural Computation 14(1).
    """
    density = np.exp(log_densities - log_densities.max(axis=1, keepdims=True))
    shares = np.asarray(start, np.float64) / np.sum(start)
    for _ in range(1 if is_known else _EM_STEPS):
        joint = density * np.maximum(shares, 0) + 1e-300
        belongs: Floats = joint / joint.sum(axis=1, keepdims=True)
        found = belongs.mean(axis=0)
        change = float(np.abs(found - shares).max())
        shares = found
        if change < _LEAST_CHANGE:
            break
    return belongs


@dataclass(frozen=True, kw_only=True)
class EqualShares:
    """Weights that give two samples equal shares of the classes.

    Attributes:
        first: of each example of the first sample, (m,): share in the second / share in the first.
        second: of each example of the second sample, (n,): 1, or less if it may be of a class that
            the first sample lacks.
    """

    first: Floats
    second: Floats


def equal_shares(first: Floats, second: Floats) -> EqualShares:
    """Weight the first sample so that its classes have the shares of the second.

    Shapes: probability of each class for each example: first (m, k), second (n, k).
    """
    p, q = first.mean(axis=0), second.mean(axis=0)
    is_in_both = p > 0
    ratio = np.divide(q, p, out=np.zeros_like(q), where=is_in_both)
    return EqualShares(first=first @ ratio, second=second @ is_in_both.astype(np.float64))


def share_p(first: ArrayLike, second: ArrayLike) -> float:
    """Return the p-value of the largest difference between shares of two samples.

        z = (q - p) / sqrt(r (1 - r) (1 / m + 1 / n)),  r: the share in both samples together

    two-sided, times the number of classes (Bonferroni).

    Args:
        first, second: number of examples of each class, (k,).
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    m, n = float(a.sum()), float(b.sum())
    together = (a + b) / max(m + n, 1)
    spread = np.sqrt(together * (1 - together) * (1 / max(m, 1) + 1 / max(n, 1)))
    z = np.abs(b / max(n, 1) - a / max(m, 1)) / np.where(spread > 0, spread, math.inf)
    return min(1.0, 2 * (1 - NormalDist().cdf(float(z.max()))) * int((a + b > 0).sum()))

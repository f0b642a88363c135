"""Classifier two-sample tests: are two samples from the same distribution?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepladder.records.ladder import Interval

Floats = NDArray[np.float64]
_NEWTON_STEPS = 30
_MAX_LOGIT = 30.0
_ROUNDING = 1e-12  # of an area that is a sum of shares


@dataclass(frozen=True, kw_only=True)
class Separation:
    """How well a score separates two samples.

    Attributes:
        auc: probability that one of the second sample scores above one of the first, with bounds.
        p: one-sided p-value of the null hypothesis that both have the same distribution of scores.
    """

    auc: Interval
    p: float


def separation(
    first: ArrayLike,
    second: ArrayLike,
    *,
    weights: tuple[ArrayLike, ArrayLike] | None = None,
    confidence: float = 0.95,
) -> Separation:
    """Return an interval for the area under the ROC curve of scores, and a p-value.

    Uses DeLong's variance on the logit scale. For complete separation it is 0, but the area is not
    known to be exactly 1: with an area of A, k disjoint pairs are all ordered with probability A^k,
    so that the bound is (1 - confidence)^(1 / k), k being the size of the smaller sample. The
    p-value is that of the Mann-Whitney test, corrected for ties. With weights, the size of a
    sample is its effective size, (sum w)^2 / sum w^2.

    Args:
        first, second: scores, (m,) and (n,), each 2 or more; the second is expected to be higher.
        weights: of each score, (m,) and (n,), 0 or more, not all 0; None: all are equal.
        confidence: one-sided confidence of each bound, in (0.5, 1).

    Raises:
        ValueError: if a sample has fewer than two scores.

    Source: DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44(3); Mann and Whitney
    1947, Ann. Math. Stat. 18(1); Kish 1965, "Survey Sampling" (effective size).
    """
    low, high = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if low.size < 2 or high.size < 2:
        raise ValueError(f"{low.size} and {high.size} scores are too few: at least 2 of each")
    given = (np.ones(low.size), np.ones(high.size)) if weights is None else weights
    v, w = (np.asarray(each, np.float64) for each in given)
    m, n = effective_size(v), effective_size(w)
    below = _share_below(low, v, high)  # (n,): share of the first sample below each of the second
    above = 1 - _share_below(high, w, low)  # (m,)
    area = min(1.0, max(0.0, float(w @ below) / float(w.sum())))
    variance = _mean_variance(above, v) + _mean_variance(below, w)
    if variance == 0 or min(area, 1 - area) < _ROUNDING:
        certain = (1 - confidence) ** (1 / min(m, n))
        bounds = (certain if area > 0.5 else 0.0, 1 - certain if area < 0.5 else 1.0)
    else:
        half = NormalDist().inv_cdf(confidence) * math.sqrt(variance) / (area * (1 - area))
        logit = math.log(area / (1 - area))
        bounds = (_logistic(logit - half), _logistic(logit + half))
    interval = Interval(estimate=area, low=bounds[0], high=bounds[1], confidence=confidence)
    return Separation(auc=interval, p=_mann_whitney(area, (low, high), (m, n)))


def effective_size(weights: ArrayLike) -> float:
    """Return (sum w)^2 / sum w^2: how many examples of equal weight have as much noise."""
    w = np.asarray(weights, np.float64)
    return float(w.sum() ** 2 / max(float((w**2).sum()), 1e-300))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm-corrected p-values of several tests, which bound the family-wise error rate.

        the k-th smallest of m, times m - k + 1; not below the previous one, not above 1

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure", Scand. J. Stat. 6.
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, idx in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, (len(p_values) - rank) * p_values[idx])
        corrected[idx] = min(1.0, largest)
    return corrected


def held_out_scores(
    features: ArrayLike,
    is_second: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    num_folds: int = 5,
    ridge: float = 1.0,
    seed: int,
) -> Floats:
    """Return cross-validated scores of a logistic regression; higher means the second sample.

    Both samples have the same total weight, and both are distributed evenly over the folds.

    Args:
        features: (n, d).
        is_second: (n,), bool; num_folds or more of each sample.
        weights: of each example within its sample, (n,), 0 or more; None: all are equal.
        ridge: strength of the penalty on the weights of standardised features, above 0.
        seed: of the folds.

    Returns:
        Log odds, (n,).

    Source: Lopez-Paz and Oquab 2017, "Revisiting Classifier Two-Sample Tests", arXiv:1610.06545.
    """
    x = np.asarray(features, np.float64)
    second = np.asarray(is_second, bool)
    given = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
    fold = _deal(second, num_folds, np.random.default_rng(seed))
    scores = np.empty(len(x))
    for held_out in range(num_folds):
        is_out = fold == held_out
        mean, spread = x[~is_out].mean(axis=0), x[~is_out].std(axis=0)
        scaled = (x - mean) / np.where(spread > 0, spread, 1.0)
        weights, offset = logistic_regression(
            scaled[~is_out], second[~is_out], given[~is_out], ridge=ridge
        )
        scores[is_out] = scaled[is_out] @ weights + offset
    return scores


def logistic_regression(
    features: Floats, is_second: NDArray[np.bool_], weights: Floats | None = None, *, ridge: float
) -> tuple[Floats, float]:
    """Fit coefficients (d,) and an offset by Newton's method; both samples weigh the same.

        minimise  sum_i c_i ln(1 + exp(-y_i (w x_i + b))) + ridge |w|^2 / 2,  c: n / (2 n_class),
        times the weight of an example over the mean weight of its sample

    Shapes: features (n, d), is_second (n,), weights (n,); None: all are equal.

    Source: Hastie, Tibshirani and Friedman 2009, "The Elements of Statistical Learning", 4.4.1.
    """
    n, d = features.shape
    x = np.concatenate([features, np.ones((n, 1))], axis=1)
    given = np.ones(n) if weights is None else weights
    side = is_second.astype(np.int64)
    totals = np.maximum(np.bincount(side, given, minlength=2), 1e-12)
    share = n / 2 * given / totals[side]
    penalty = np.append(np.full(d, ridge), 1e-6)
    fitted = np.zeros(d + 1)
    for _ in range(_NEWTON_STEPS):
        chance = 1 / (1 + np.exp(-np.clip(x @ fitted, -_MAX_LOGIT, _MAX_LOGIT)))
        gradient = x.T @ (share * (chance - is_second)) + penalty * fitted
        curvature = (x * (share * chance * (1 - chance))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        fitted -= step
        if float(np.abs(step).max()) < 1e-8:
            break
    return fitted[:d], float(fitted[d])


def principal_parts(features: ArrayLike, num_parts: int) -> Floats:
    """Return the principal components of features (n, d).

    Returns:
        (n, k), k at most num_parts; directions without variance are left out.
    """
    x = np.asarray(features, np.float64)
    x = x - x.mean(axis=0)
    n, d = x.shape
    # eigenvectors of the smaller of the two products take a tenth of the time of an SVD
    squares, vectors = np.linalg.eigh(x @ x.T if n <= d else x.T @ x)
    is_real = squares > 1e-14 * max(1e-300, float(squares[-1]))  # of lengths: 1e-7
    squares, vectors = squares[is_real][::-1][:num_parts], vectors[:, is_real][:, ::-1]
    vectors = vectors[:, :num_parts]
    parts: Floats = vectors * np.sqrt(squares) if n <= d else x @ vectors
    return parts


def _share_below(values: Floats, weights: Floats, at: Floats) -> Floats:
    """Return for each of `at` the total share of the values below it, counting equal ones half."""
    order = np.argsort(values, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(weights[order])])
    left = total[np.searchsorted(values[order], at, side="left")]
    right = total[np.searchsorted(values[order], at, side="right")]
    share: Floats = (left + right) / (2 * total[-1])
    return share


def _mean_variance(values: Floats, weights: Floats) -> float:
    """Return the variance of a weighted mean; with equal weights var(ddof=1) / n."""
    away = values - float(weights @ values) / float(weights.sum())
    squares = weights**2 / weights.sum() ** 2
    return float(squares @ away**2) / max(1 - float(squares.sum()), 1e-12)


def _mann_whitney(area: float, scores: tuple[Floats, Floats], sizes: tuple[float, float]) -> float:
    """Return the p-value of an area; sizes are the effective ones."""
    _, ties = np.unique(np.concatenate(scores), return_counts=True)
    num, total = int(ties.sum()), sum(sizes)
    tied = float((ties**3 - ties).sum()) / (num * (num - 1)) * total / num
    variance = (total + 1 - tied) / (12 * sizes[0] * sizes[1])
    if variance <= 0:
        return 1.0  # all scores are equal
    return 1 - NormalDist().cdf((area - 0.5) / math.sqrt(variance))


def _logistic(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def _deal(second: NDArray[np.bool_], num_folds: int, random: np.random.Generator) -> NDArray[Any]:
    fold = np.empty(len(second), np.int64)
    for side in (False, True):
        places = random.permutation(np.flatnonzero(second == side))
        fold[places] = np.arange(len(places)) % num_folds
    return fold

"""Find clusters of examples by k-means, compared with a normal cloud of the same covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepladder.stats.ridge import squared_distances

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NUM_STARTS = 6
_MAX_ROUNDS = 50
_NUM_CLOUDS = 5


@dataclass(frozen=True, kw_only=True)
class Clusters:
    """Clusters of examples.

    Attributes:
        marks: cluster of each example, (n,).
        clearness: mean of 1 - d1 / d2, d1 and d2 the distances to the nearest centre and the next.
        clearness_by_chance: largest value for clouds of the same mean and covariance.
    """

    marks: Ints
    clearness: float
    clearness_by_chance: float


def find_clusters(features: ArrayLike, num_clusters: int, *, seed: int) -> Clusters:
    """Cluster examples (n, d), and normal clouds of the same covariance for comparison.

    Source: Arthur and Vassilvitskii 2007, "k-means++"; Rousseeuw 1987, "Silhouettes", in its form
    by centres; Tibshirani, Walther and Hastie 2001, "Estimating the Number of Clusters" (clouds).
    """
    x = np.asarray(features, np.float64)
    random = np.random.default_rng(seed)
    marks, clearness = _k_means(x, num_clusters, random)
    centred = x - x.mean(axis=0)
    by_chance = [
        _k_means(_cloud(centred, random), num_clusters, random)[1] for _ in range(_NUM_CLOUDS)
    ]
    return Clusters(marks=marks, clearness=clearness, clearness_by_chance=max(by_chance))


def _cloud(centred: Floats, random: np.random.Generator) -> Floats:
    """Draw a normal cloud (n, d) of the same covariance."""
    mixing: Floats = random.standard_normal((len(centred), len(centred))) / np.sqrt(len(centred))
    return mixing @ centred


def dependence_p(one: ArrayLike, other: ArrayLike, *, num_draws: int, seed: int) -> float:
    """Return the permutation p-value of the independence of two labellings of examples.

    chi^2 = sum (n_ij - n_i n_j / n)^2 / (n_i n_j / n), against itself with one labelling permuted
    """
    _, first = np.unique(np.asarray(one), return_inverse=True)
    _, second = np.unique(np.asarray(other), return_inverse=True)
    random = np.random.default_rng(seed)
    seen = _chi_squared(first, second)
    dealt = [_chi_squared(first, random.permutation(second)) for _ in range(num_draws)]
    return (1 + sum(value >= seen for value in dealt)) / (1 + num_draws)


def _chi_squared(first: NDArray[Any], second: NDArray[Any]) -> float:
    width = int(second.max()) + 1
    table = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width)
    counts = table.reshape(-1, width).astype(np.float64)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    return float(((counts - expected) ** 2 / np.maximum(expected, 1e-12)).sum())


def _k_means(x: Floats, num_clusters: int, random: np.random.Generator) -> tuple[Ints, float]:
    """Return the best of several clusterings, by scatter, and its clearness."""
    best: tuple[float, Ints, float] | None = None
    for _ in range(_NUM_STARTS):
        centres = _scattered(x, num_clusters, random)
        for _ in range(_MAX_ROUNDS):
            away = squared_distances(x, centres)
            marks = away.argmin(axis=1)
            moved = np.stack(
                [x[marks == k].mean(axis=0) if (marks == k).any() else centres[k]
                 for k in range(num_clusters)]
            )  # fmt: skip
            if np.allclose(moved, centres):
                break
            centres = moved
        ordered = np.sort(away, axis=1)
        clearness = float(np.mean(1 - np.sqrt(ordered[:, 0] / np.maximum(ordered[:, 1], 1e-300))))
        scatter = float(ordered[:, 0].sum())
        if best is None or scatter < best[0]:
            best = scatter, marks, clearness
    assert best is not None
    return best[1], best[2]


def _scattered(x: Floats, num_clusters: int, random: np.random.Generator) -> Floats:
    """Draw initial centres that are far from each other (k-means++)."""
    centres = x[[int(random.integers(len(x)))]]
    while len(centres) < num_clusters:
        away = squared_distances(x, centres).min(axis=1)
        total = float(away.sum())
        place = random.choice(len(x), p=away / total) if total > 0 else random.integers(len(x))
        centres = np.concatenate([centres, x[[int(place)]]])
    return centres

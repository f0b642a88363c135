"""Paired comparisons of held-out examples over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepladder.records.ladder import Interval
from stepladder.stats.student import t_quantile

NUM_DRAWS = 2000
_CHUNK = 4_000_000  # weights drawn at once


@dataclass(frozen=True)
class Pairs:
    """Held-out examples of one seed, evaluated before and after a change.

    Attributes:
        rows: indices of the examples, int64 (n,).
        before, after: value of each, (n,), such as its loss, or 1 if it was classified correctly.
    """

    rows: NDArray[np.int64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]


def paired_change(
    seeds: Sequence[Pairs],
    *,
    groups: ArrayLike | None = None,
    is_share: bool = False,
    confidence: float = 0.95,
    draw_seed: int = 0,
) -> Interval:
    """Return an interval for the mean change of a value, over examples and over seeds.

    A bootstrap over examples (or whole groups) covers the noise of the examples; a bootstrap over
    the mean changes of seeds, shrunk by the share of their variance that examples explain and
    widened by t over z, adds the noise of seeds. It is valid whether all seeds are evaluated on the
    same examples or each on its own held-out ones.

    Args:
        seeds: one or more.
        groups: group of each example by its row, (num_rows,); a group is drawn as a whole. None:
            each example is its own group.
        is_share: values are 0 or 1. One more example is then assumed to have changed, so that the
            interval has a width above 0 if none did. Bounds stay in [-1, 1].
        confidence: one-sided confidence of each bound, in (0.5, 1).
        draw_seed: seed of the bootstrap.

    Raises:
        ValueError: if there are no examples, or shapes differ.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap"; Agresti and Min 2005,
    "Simple improved confidence intervals for comparing matched proportions", Stat. Med. 24.
    """
    changes = [_changes(pairs) for pairs in seeds]
    if not sum(change.size for change in changes):
        raise ValueError("there are no examples")
    rows = np.concatenate([pairs.rows for pairs in seeds])
    change = np.concatenate(changes)
    estimate = float(change.mean())
    random = np.random.default_rng(draw_seed)
    marks = rows if groups is None else np.asarray(groups)[rows]
    _, cluster = np.unique(marks, return_inverse=True)
    draws = _draw_examples(change, cluster, random) + _draw_seeds(changes, confidence, random)
    if is_share:
        draws += random.standard_normal(NUM_DRAWS) / (int(cluster.max()) + 1)
        draws = draws.clip(-1, 1)
    low, high = np.quantile(draws, [1 - confidence, confidence])
    return Interval(
        estimate=estimate,
        low=min(float(low), estimate),
        high=max(float(high), estimate),
        confidence=confidence,
    )


def _changes(pairs: Pairs) -> NDArray[np.float64]:
    before, after = np.asarray(pairs.before, np.float64), np.asarray(pairs.after, np.float64)
    if not before.shape == after.shape == pairs.rows.shape:
        raise ValueError(
            f"paired values differ in shape: {pairs.rows.shape}, {before.shape}, {after.shape}"
        )
    change: NDArray[np.float64] = after - before
    return change


def _draw_examples(
    change: NDArray[np.float64], cluster: NDArray[np.intp], random: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the mean change over clusters sampled with replacement, (NUM_DRAWS,)."""
    sums = np.bincount(cluster, weights=change)  # (c,)
    counts = np.bincount(cluster).astype(np.float64)
    num = counts.size
    step = max(1, _CHUNK // num)
    means = []
    for start in range(0, NUM_DRAWS, step):
        size = min(step, NUM_DRAWS - start)
        weights = random.multinomial(num, np.full(num, 1 / num), size=size)  # (size, c)
        means.append((weights @ sums) / (weights @ counts))
    return np.concatenate(means)


def _draw_seeds(
    changes: Sequence[NDArray[np.float64]], confidence: float, random: np.random.Generator
) -> NDArray[np.float64]:
    """Draw the effect of the choice of seeds on the mean change, beyond the noise of examples."""
    judged = [change for change in changes if change.size]
    num = len(judged)
    means = np.array([change.mean() for change in judged])  # (S,)
    spread = float(means.var(ddof=1)) if num > 1 else 0.0
    if spread == 0:
        return np.zeros(NUM_DRAWS)
    by_chance = np.mean([change.var(ddof=1) / change.size for change in judged if change.size > 1])
    shrunk = math.sqrt(max(0.0, 1 - float(by_chance) / spread))
    widened = t_quantile(confidence, num - 1) / NormalDist().inv_cdf(confidence)
    effects = (means - means.mean()) * shrunk * widened * math.sqrt(num / (num - 1))
    return np.asarray(effects[random.integers(num, size=(NUM_DRAWS, num))].mean(axis=1))


def resolvable_margin(n: int, *, disagreement: float, confidence: float = 0.95) -> float:
    """Return the smallest change of accuracy that n paired examples can distinguish from zero.

        z sqrt(disagreement / n + 1 / n^2)

    The second term is the additional example that `paired_change` assumes to have changed.

    Args:
        n: held-out examples.
        disagreement: share of examples that only one of two classifiers gets right, in [0, 1].
        confidence: one-sided.
    """
    if n < 1:
        return 1.0
    z = NormalDist().inv_cdf(confidence)
    return min(1.0, z * math.sqrt(disagreement / n + 1 / n**2))

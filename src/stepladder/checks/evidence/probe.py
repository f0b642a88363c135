"""A probe of a split's labels: cross-validated kernel ridge regression on its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.checks.evidence.spread import Described, described
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.stats.ridge import kernel, permutation_p, probe_accuracies

MAX_PROBED = 384  # examples: the time grows with their cube
NUM_DEALT = 200
_LEAST_OF_CLASS = 4
_NUM_BINS = 4  # of a regression target

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """The result of a probe on a split.

    Attributes:
        rows, vectors, labels: of the examples, (n,), (n, d), (n,); a regression target is binned
        into quartiles.
        accuracy: balanced, with leave-one-out cross-validation.
        chance: its mean with permuted labels.
        p: probability of at least this accuracy with permuted labels.
    """

    rows: Ints
    vectors: Floats
    labels: Ints
    accuracy: float
    chance: float
    p: float
    by_trunk: bool

    @property
    def is_clear(self) -> bool:
        """Whether the labels clearly belong to their inputs."""
        return self.p <= 0.01


def probed(job: CheckedJob, split: Split, *, max_examples: int = MAX_PROBED) -> Probed | None:
    """Probe a split's labels; None if it has none, or too few."""
    name = f"probe.{split.value}.{max_examples}"
    return job.remember(name, lambda: _probe(described(job, split), max_examples))


def _probe(side: Described | None, max_examples: int) -> Probed | None:
    labels = None if side is None else labels_of(side.targets)
    if side is None or labels is None:
        return None
    usable = np.flatnonzero(np.isin(labels, _frequent(labels)))
    if not usable.size:
        return None
    places = usable[np.unique(np.linspace(0, len(usable) - 1, max_examples).astype(np.int64))]
    if len(places) < 2 * _LEAST_OF_CLASS or len(np.unique(labels[places])) < 2:
        return None
    vectors = side.vectors[places]
    return probe(vectors, labels[places], rows=side.rows[places], by_trunk=side.by_trunk)


def probe(vectors: Floats, labels: Ints, *, rows: Ints, by_trunk: bool) -> Probed:
    """Probe the labels of some vectors."""
    accuracy, dealt = probe_accuracies(kernel(vectors), labels, num_draws=NUM_DEALT, seed=0)
    return Probed(
        rows=rows,
        vectors=vectors,
        labels=labels,
        accuracy=accuracy,
        chance=float(dealt.mean()),
        p=permutation_p(accuracy, dealt),
        by_trunk=by_trunk,
    )


def labels_of(targets: Tensor | None) -> Ints | None:
    """Return a class for each example: its label, or the quartile of its number."""
    if targets is None or targets.is_complex():
        return None
    values = targets.squeeze(-1) if targets.dim() == 2 and targets.shape[1] == 1 else targets
    if values.dim() != 1:
        return None
    if not values.is_floating_point():
        return values.numpy().astype(np.int64)
    finite = torch.nan_to_num(values.double()).numpy()
    kinds = np.unique(finite)
    if len(kinds) <= _NUM_BINS:
        return np.searchsorted(kinds, finite)
    edges = np.quantile(finite, np.arange(1, _NUM_BINS) / _NUM_BINS)
    return np.searchsorted(edges, finite)


def _frequent(labels: Ints) -> Ints:
    kinds, counts = np.unique(labels, return_counts=True)
    frequent: Ints = kinds[counts >= _LEAST_OF_CLASS]
    return frequent

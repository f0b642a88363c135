"""A probe of a split's labels: what kernel ridge regression reads off inputs it has not seen."""

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

MAX_PROBED = 384  # examples: the time grows with the cube
NUM_DEALT = 200
_LEAST_OF_CLASS = 4
_NUM_BINS = 4  # of a number to be predicted

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a probe finds in a split.

    Attributes:
        rows, vectors, labels: the examples, (n,), (n, d), (n,); a number to be predicted is cut
            into quarters.
        accuracy: balanced, of examples left out one at a time.
        chance: its mean where labels are dealt at random.
        p: chance that dealt labels do as well.
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
        """Whether the labels belong to their inputs, beyond doubt."""
        return self.p <= 0.01


def probed(job: CheckedJob, split: Split, *, max_examples: int = MAX_PROBED) -> Probed | None:
    """Probe a split's labels; None where there are none, or too few."""
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
    """Return a class of each example: its label, or the quarter that its number lies in."""
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

"""Shares of classes in two splits; of clusters, if examples have no class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepladder.checks.evidence.classes import class_labels, class_name
from stepladder.checks.evidence.spread import Described, described
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.stats.class_shares import class_log_densities, memberships, share_p
from stepladder.stats.clusters import find_clusters
from stepladder.stats.two_samples import principal_parts

_NUM_PARTS = 32
_LEAST_PER_CLASS = 4  # examples, on average, of which a class's density is estimated
_NUM_CLUSTERS = (2, 4, 8)
_SEED = 0

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Side:
    """The examples of a split that are compared: some of those that are described."""

    of: Described
    places: Ints

    @property
    def vectors(self) -> NDArray[np.float32]:
        """Vectors of the examples, (n, d)."""
        return self.of.vectors[self.places]

    @property
    def classes(self) -> Ints | None:
        """Class of each example, (n,); None if it has none, and for test."""
        targets = self.of.targets
        if not isinstance(targets, Tensor) or targets.dim() != 1:
            return None
        if targets.is_floating_point() or targets.is_complex():
            return None
        found: Ints = targets.numpy().astype(np.int64)[self.places]
        return found


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of classes, or clusters, in two splits.

    Attributes:
        first, second: probability of each class for each compared example, (m, k) and (n, k).
        counts: examples of each class in the first split and in the second, (k,) each: of all
            examples if they are known, else of those that are compared.
        names: of the classes.
        is_estimated: whether those of the second split are estimated from its inputs.
    """

    first: Floats
    second: Floats
    counts: tuple[Floats, Floats]
    names: tuple[str, ...]
    is_estimated: bool

    @property
    def most_shifted(self) -> tuple[str, float, float]:
        """Name and both shares of the class with the largest difference."""
        p, q = (count / count.sum() for count in self.counts)
        place = int(np.abs(p - q).argmax())
        return self.names[place], float(p[place]), float(q[place])

    @property
    def p(self) -> float:
        """Probability of as large a difference if shares were equal."""
        return share_p(*self.counts)


def shares_of(job: CheckedJob, first: Side, second: Side) -> Shares | None:
    """Compare the shares of classes in two splits.

    Labels of test are not read: its shares are those that a store's manifest lists; else, and for
    each single example, they are estimated from the inputs of labelled examples. None if there are
    neither classes nor clear clusters.
    """
    labels = first.classes
    if labels is None:
        return _by_cluster(job, first, second)
    if second.of.split is Split.TEST:
        return _with_test(job, first, second, labels)
    others = second.classes
    if others is None:
        return None
    kinds = np.union1d(labels, others)
    counts = _counts(job, first.of.split, kinds), _counts(job, second.of.split, kinds)
    return Shares(
        first=_one_hot(labels, kinds),
        second=_one_hot(others, kinds),
        counts=counts,
        names=tuple(class_name(job, int(kind)) for kind in kinds),
        is_estimated=False,
    )


def _with_test(job: CheckedJob, val: Side, test: Side, labels: Ints) -> Shares | None:
    vectors, known = [val.vectors], [labels]
    train = described(job, Split.TRAIN)
    if train is not None and train.vectors.shape[1] == val.vectors.shape[1]:
        side = Side(of=train, places=np.arange(len(train.rows)))
        if side.classes is not None:
            vectors, known = [*vectors, side.vectors], [*known, side.classes]
    kinds, marks = np.unique(np.concatenate(known), return_inverse=True)
    if len(kinds) < 2 or len(marks) < _LEAST_PER_CLASS * len(kinds):
        return _by_cluster(job, val, test)
    parts = principal_parts(np.concatenate([*vectors, test.vectors]), _NUM_PARTS)
    density = class_log_densities(parts[: len(marks)], marks, parts[len(marks) :])
    listed = job.listed_counts(Split.TEST)
    if listed is not None and len(listed) > kinds[-1] and listed[kinds].sum() > 0:
        members = memberships(density, listed[kinds], is_known=True)
        counts = listed[kinds].astype(np.float64)
    else:
        members = memberships(density, np.ones(len(kinds)), is_known=False)
        counts = members.sum(axis=0)
    return Shares(
        first=_one_hot(labels, kinds),
        second=members,
        counts=(_counts(job, Split.VAL, kinds), counts),
        names=tuple(class_name(job, int(kind)) for kind in kinds),
        is_estimated=listed is None,
    )


def _by_cluster(job: CheckedJob, first: Side, second: Side) -> Shares | None:
    """Compare the shares of the clearest clusters of the first split.

    Clusters of both would be pure if their inputs differ, which would then seem to be a difference
    of shares.
    """
    parts = principal_parts(np.concatenate([first.vectors, second.vectors]), _NUM_PARTS)
    own, others = parts[: len(first.places)], parts[len(first.places) :]
    tried = [find_clusters(own, num, seed=_SEED) for num in _NUM_CLUSTERS]
    best = max(tried, key=lambda one: one.clearness - one.clearness_by_chance)
    if best.clearness <= best.clearness_by_chance:
        return None
    kinds, marks = np.unique(best.marks, return_inverse=True)
    density = class_log_densities(own, marks, others)
    members = memberships(density, np.ones(len(kinds)), is_known=False)
    belongs = _one_hot(best.marks, kinds)
    typical = class_log_densities(own, marks, own)
    rows = [
        int(first.of.rows[first.places[np.where(marks == at, typical[:, at], -np.inf).argmax()]])
        for at in range(len(kinds))
    ]
    return Shares(
        first=belongs,
        second=members,
        counts=(belongs.sum(axis=0), members.sum(axis=0)),
        names=tuple(f"the cluster around {job.describe(first.of.split, row)}" for row in rows),
        is_estimated=True,
    )


def _counts(job: CheckedJob, split: Split, kinds: Ints) -> Floats:
    labels = class_labels(job, split)
    assert labels is not None  # examples of the split have classes
    counts: Floats = _one_hot(labels.values, kinds).sum(axis=0)
    return counts


def _one_hot(labels: Ints, kinds: Ints) -> Floats:
    found: Floats = (labels[:, None] == kinds).astype(np.float64)
    return found

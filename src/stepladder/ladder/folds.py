"""Which examples a training learns from, which stop it, and which judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.data.feature_source import HeldFeatures
from stepladder.data.rows import rows_of
from stepladder.train.build import Sources

NEAR: Final = 0.75
"""Cosine of two examples' features, their mean taken off, from which on they count as one.

Of 732 photographs of groceries, 1,006 pairs are as near, 99 % within one class: shots of one shelf.
They form 322 groups, the largest of 56. At 0.85 (574 groups) shots of one shelf still lie on both
sides: the held-out accuracy is then 97 %, and 75 % in another shop; at 0.75 it is 90 %.
"""
MAX_COMPARED: Final = 20_000
_BLOCK: Final = 1024
_MAX_GROUP_FRAC: Final = 0.1

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one training.

    Attributes:
        sources: train; val, which stops it and chooses the best weights; test, which judges it.
        rows: of the judging examples, in the pool of train and validation.
        fold: index of the held-out fold; None: the validation split itself judges.
    """

    sources: Sources
    rows: Ints
    fold: int | None


def plain_parts(sources: Sources) -> Parts:
    """Train as the job does; its validation split both stops and judges."""
    num_val = 0 if sources.val is None else len(sources.val)
    rows = len(sources.train) + np.arange(num_val, dtype=np.int64)
    judged = Sources(train=sources.train, val=sources.val, test=sources.val)
    return Parts(sources=judged, rows=rows, fold=None)


def make_folds(sources: Sources, groups: Ints, *, num_folds: int, seed: int) -> tuple[Parts, ...]:
    """Cut train and validation together into folds, each held out once; groups stay whole.

    Of what is not held out, a share stops the training: the same share that validation has of the
    job's own data, and none where the job has no validation.

    Args:
        groups: group of each example, (num_train + num_val,).
    """
    pool = [sources.train] if sources.val is None else [sources.train, sources.val]
    num = sum(len(source) for source in pool)
    stop_share = 0.0 if sources.val is None else len(sources.val) / num
    random = np.random.default_rng(seed)
    fold_of = deal_groups(groups, num_folds, random)
    found = []
    for fold in range(num_folds):
        rest = np.flatnonzero(fold_of != fold)
        stop = _take_groups(rest, groups, round(stop_share * len(rest)), random)
        train = np.setdiff1d(rest, stop)
        judge = np.flatnonzero(fold_of == fold)
        found.append(
            Parts(
                sources=Sources(
                    train=rows_of(pool, train),
                    val=rows_of(pool, stop) if len(stop) else None,
                    test=rows_of(pool, judge),
                ),
                rows=judge,
                fold=fold,
            )
        )
    return tuple(found)


def deal_groups(groups: Ints, num_folds: int, random: np.random.Generator) -> Ints:
    """Give each example a fold: whole groups, in random order, each to the smallest fold so far."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sizes = np.zeros(num_folds, dtype=np.int64)
    fold_of_group = np.empty(len(counts), dtype=np.int64)
    for one in random.permutation(len(counts)):
        fold = int(sizes.argmin())
        fold_of_group[one] = fold
        sizes[fold] += counts[one]
    return fold_of_group[group]


def _take_groups(rows: Ints, groups: Ints, num: int, random: np.random.Generator) -> Ints:
    """Take whole groups in random order until there are num rows."""
    if num == 0:
        return np.empty(0, dtype=np.int64)
    _, group = np.unique(groups[rows], return_inverse=True)
    rank = random.permutation(int(group.max()) + 1)[group]
    order = np.argsort(rank, kind="stable")
    last = rank[order[num - 1]]
    return np.sort(rows[rank <= last])


def near_groups(sources: Sequence[HeldFeatures]) -> Ints:
    """Put examples whose features are near into one group, and those near to them.

    Each example is a group of its own where there are more than 20,000, which are not compared,
    and where a group would hold over a tenth of all: such features tell kinds, not duplicates.

    Returns:
        Group of each example, counted through all sources, int64 (n,).
    """
    num = sum(len(source) for source in sources)
    alone = np.arange(num, dtype=np.int64)
    if num > MAX_COMPARED:
        return alone
    held = [_held_rows(source) for source in sources]
    starts = np.cumsum([0, *(len(source) for source in sources)])[:-1]
    rows = np.concatenate([start + some for start, some in zip(starts, held, strict=True)])
    read = [_features(source, some) for source, some in zip(sources, held, strict=True)]
    features = torch.cat(read)  # (held, d)
    features = features - features.mean(dim=0)
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-12)
    parent: list[int] = alone.tolist()
    for start in range(0, len(rows), _BLOCK):
        near = unit[start : start + _BLOCK] @ unit[start:].T >= NEAR  # (block, rest)
        for one, other in (near.nonzero() + start).tolist():
            _unite(parent, int(rows[one]), int(rows[other]))
    groups = np.array([_root(parent, row) for row in range(num)], dtype=np.int64)
    return alone if np.bincount(groups).max() > max(1, _MAX_GROUP_FRAC * num) else groups


def _held_rows(source: HeldFeatures) -> Ints:
    """Give the rows whose features are held: of a sample, those that are in it."""
    return np.arange(len(source)) if source.rows is None else np.sort(source.rows)


def _features(source: HeldFeatures, rows: Ints) -> Tensor:
    inputs: Any = source.read(rows).inputs
    first: Tensor = inputs.flatten(1)
    return first.float()


def _root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row


def _unite(parent: list[int], one: int, other: int) -> None:
    parent[_root(parent, one)] = _root(parent, other)

"""Which examples are used for training, for early stopping, and for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.config.choices import OrderMode
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.order.order import Order
from stepladder.data.reading.examples import Source
from stepladder.data.reading.rows import rows_of
from stepladder.training.setup.build import Sources

NEAR: Final = 0.75
"""Cosine similarity of two examples' centred features from which they belong to one group.

Among 732 photographs of groceries, 1,006 pairs are that similar, 99 % within one class: shots of
one shelf. They form 322 groups, the largest of 56. At 0.85 (574 groups), shots of one shelf are
still on both sides: the held-out accuracy is then 97 %, and 75 % in another shop; at 0.75 it is
90 %.
"""
MAX_COMPARED: Final = 20_000
_BLOCK: Final = 1024
_MAX_GROUP_FRAC: Final = 0.1

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of one training.

    Attributes:
        sources: train; val, for early stopping and the best weights; test, for evaluation.
        rows: of the evaluated examples, in the pool of train and validation.
        fold: index of the held-out fold; None: evaluated on the validation split itself.
        plain: the training examples without random views; None: those in sources.
    """

    sources: Sources
    rows: Ints
    fold: int | None
    plain: Source | None = None


def learnt_sample(parts: Parts, order: Order | None = None) -> Source | None:
    """Return as many training examples as test examples, evenly spaced; None without a test split.

    Args:
        order: order of the training, whose sample is used; None: all training examples.
    """
    train, test = parts.plain or parts.sources.train, parts.sources.test
    if test is None:
        return None
    learnt = np.arange(len(train), dtype=np.int64)
    if order is not None and order.fraction < 1:
        in_order = replace(order, mode=OrderMode.SEQUENTIAL)
        learnt = np.sort(in_order.samples(0, 0, in_order.num_samples))
    num = min(len(learnt), len(test))
    rows = np.unique(np.linspace(0, len(learnt) - 1, num).astype(np.int64))
    return rows_of([train], learnt[rows])


def plain_parts(sources: Sources, *, plain: Sources | None = None) -> Parts:
    """Return the job's own splits; its validation split is used for stopping and evaluation.

    Args:
        plain: the same without random views of training examples, if sources hold such.
    """
    num_val = 0 if sources.val is None else len(sources.val)
    rows = len(sources.train) + np.arange(num_val, dtype=np.int64)
    judged = Sources(train=sources.train, val=sources.val, test=sources.val)
    return Parts(sources=judged, rows=rows, fold=None, plain=plain.train if plain else None)


def make_folds(
    sources: Sources,
    groups: Ints,
    *,
    num_folds: int,
    seed: int,
    batch: int | None = None,
    plain: Sources | None = None,
) -> tuple[Parts, ...]:
    """Split train and validation together into folds, each held out once; groups stay together.

    Examples that are not held out keep their role: training examples train, and validation
    examples decide when to stop. A fold that would hold out all validation examples holds out none.

    Args:
        groups: group of each example, (num_train + num_val,).
        batch: examples of a forward pass. If the last batch of an epoch would be a single example,
            which BatchNorm cannot train on, that one is left out; this also holds for multiples of
            batch.
        plain: the same without random views of training examples, if sources hold such: held-out
            examples are evaluated without random views.
    """
    pool, judged = _pool(sources), _pool(plain or sources)
    num_train = len(sources.train)
    rows = np.arange(sum(len(source) for source in pool), dtype=np.int64)
    fold_of = deal_groups(groups, num_folds, np.random.default_rng(seed))
    found = []
    for fold in range(num_folds):
        is_held_out = fold_of == fold
        if is_held_out[num_train:].all():
            is_held_out[num_train:] = False
        stop = rows[~is_held_out & (rows >= num_train)]
        learnt = rows[~is_held_out & (rows < num_train)]
        if batch is not None and len(learnt) > 1 and len(learnt) % batch == 1:
            learnt = learnt[:-1]
        found.append(
            Parts(
                sources=Sources(
                    train=rows_of(pool, learnt),
                    val=rows_of(pool, stop) if len(stop) else None,
                    test=rows_of(judged, rows[is_held_out]),
                ),
                rows=rows[is_held_out],
                fold=fold,
                plain=rows_of(judged, learnt) if plain else None,
            )
        )
    return tuple(found)


def _pool(sources: Sources) -> list[Source]:
    return [sources.train] if sources.val is None else [sources.train, sources.val]


def deal_groups(groups: Ints, num_folds: int, random: np.random.Generator) -> Ints:
    """Return the fold of each example: groups in random order, each to the smallest fold so far."""
    _, group, counts = np.unique(groups, return_inverse=True, return_counts=True)
    sizes = np.zeros(num_folds, dtype=np.int64)
    fold_of_group = np.empty(len(counts), dtype=np.int64)
    for one in random.permutation(len(counts)):
        fold = int(sizes.argmin())
        fold_of_group[one] = fold
        sizes[fold] += counts[one]
    return fold_of_group[group]


def near_groups(sources: Sequence[HeldFeatures]) -> Ints:
    """Group examples with similar features, transitively (single linkage).

    Each example is its own group if there are more than 20,000, which are not compared, or if a
    group would hold over a tenth of all: such features separate kinds, not duplicates.

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
    """Return the rows whose features are held: those of the sample, if it is one."""
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

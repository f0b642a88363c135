"""Ranks begin with the same weights and the same data, and draw numbers of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.sample import augmented_again, same_tensors, take, tensors_of
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.machine.ranks import (
    NUM_RANKS,
    View,
    alike,
    can_look,
    has_file,
    other_keys,
    other_rows,
    views_of,
)
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.order.order import Order, rank_slice
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.training.randomness import step_seed

_MAX_POSITIONS = 100_000  # of an epoch whose order is looked at
_NUM_COPIES = 8  # of one example, augmented for each rank
_NUM_EPOCHS = 4
_FRESH_S = 10.0  # that must be left for another interpreter
_SEED_FIX = "Seed by the recipe alone in build_model; the run gives each rank draws of its own."
_DATA_FIX = (
    "Give every rank the same examples in the same order: the run cuts each batch by rank itself. "
    "Sort what comes from a set, whose order differs between processes."
)
_DRAW_FIX = "Draw from torch's or NumPy's global state, or from a generator of (seed, rank, row)."
_AUGMENT_FIX = "Draw for each example from (seed, epoch, its id), not from its place in the batch."


@dataclass(frozen=True, kw_only=True)
class _Differing:
    """What two ranks do not have in common.

    Attributes:
        words: what it is.
        fix: what to do.
    """

    words: str
    fix: str


def ranks_differ(job: CheckedJob) -> Answer:
    """Make model and data as ranks 0 and 1 of 2 would, each in a process of its own, and compare.

    Weights and data must be alike, the examples that each is given must be others, and so must
    random draws.
    """
    is_several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    severity = Severity.ERROR if is_several else None
    if not can_look(job):
        return not_applicable("processes cannot be forked here, and the Task lies in no file")
    is_fresh = has_file(job) and job.left_s() > _FRESH_S
    views = [*views_of(job, 0), *views_of(job, 1, fresh=is_fresh)]
    differing = _differing(*views)
    if differing is not None:
        if _differing(*views_of(job, 0, num_looks=2)) is not None:
            return not_applicable(
                "weights or data differ even where one rank makes them twice; `seeds` tells"
            )
        return found("ranks_differ", differing.words, fix=differing.fix, severity=severity)
    counts = _epoch(job)
    if counts is not None and counts.max() > 1:
        twice = int((counts > 1).sum())
        return found(
            "ranks_differ",
            f"{twice} examples are given to both ranks in one epoch",
            fix="This is a fault of stepladder: tell its authors, with the recipe.",
        )
    drawn = _draws_alike(*views) or _augments_alike(job)
    if drawn is not None:
        return found("seeds_wrong", drawn.words, fix=drawn.fix)
    shared = "" if counts is None else f"; {counts.sum()} examples of an epoch go to one of them"
    return passed(
        f"ranks 0 and 1 of {NUM_RANKS} begin with the same {len(views[0].weights)} weights and the "
        f"same data{shared}",
        coverage=None if is_fresh or not has_file(job) else "without running the Task's file again",
        num_weights=len(views[0].weights),
    )


# --- what must be alike


def _differing(first: View, second: View) -> _Differing | None:
    weights = other_keys(first.weights, second.weights)
    weights += [
        name
        for name, numbers in first.weights.items()
        if name in second.weights and not alike(numbers, second.weights[name])
    ]
    if weights:
        return _Differing(
            words=f"{len(weights)} of {len(first.weights)} weights begin otherwise on rank 1 than "
            f"on rank 0, such as {weights[0]}: each would train a model of its own",
            fix=_SEED_FIX,
        )
    splits = other_keys(first.data, second.data)
    if splits:
        return _Differing(words=f"data({splits[0]}) is not there on every rank", fix=_DATA_FIX)
    for split, rows in first.data.items():
        words = other_rows(rows, second.data[split], names=("rank 0", "rank 1"))
        if words is not None:
            return _Differing(words=f"data({split}) differs by rank: {words}", fix=_DATA_FIX)
    return None


# --- what must differ


def _epoch(job: CheckedJob) -> np.ndarray | None:
    """Cut an epoch for two ranks as the run would; None: it comes in an order of its own.

    Returns:
        How often each row is given to a rank, (num_examples,).
    """
    if isinstance(job.sources.train, ArrivalSource):
        return None
    order = order_of(job.recipe.data, job.sources.train, seed=job.recipe.seed)
    num_positions = min(order.num_samples, _MAX_POSITIONS)
    return given(order, job.recipe.batch.global_batch_size, num_positions)


def given(order: Order, global_batch_size: int, num_positions: int) -> np.ndarray:
    """Count how often each row is given to a rank within the first positions of an epoch.

    Shapes: int64 (num_examples,).
    """
    counts = np.zeros(order.num_examples, dtype=np.int64)
    for start in range(0, num_positions, global_batch_size):
        batch = order.samples(0, start, min(start + global_batch_size, num_positions))
        for rank in range(NUM_RANKS):
            low, high = rank_slice(len(batch), rank, NUM_RANKS)
            np.add.at(counts, batch[low:high], 1)
    return counts


def _draws_alike(first: View, second: View) -> _Differing | None:
    """See whether reading one example draws the same on both ranks, by how often one has read.

    Draws by (row, count) are alike as well, and sound, as ranks read other rows: these are the
    same after another example was read.
    """
    if not first.draws or _same(first.draws, second.draws) is False:
        return None
    is_constant = all(alike(first.draws[0], numbers) for numbers in first.draws)
    if is_constant or _same(first.draws, first.later_draws):
        return None
    return _Differing(
        words=f"ranks 0 and 1 read one example {len(first.draws)} times each, seeded otherwise, "
        "and drew the same in the same order: the dataset seeds a generator of its own alike in "
        "every process",
        fix=_DRAW_FIX,
    )


def _same(first: tuple[tuple[float, ...], ...], second: tuple[tuple[float, ...], ...]) -> bool:
    return len(first) == len(second) and all(map(alike, first, second))


def _augments_alike(job: CheckedJob) -> _Differing | None:
    """Augment copies of one example under the ids of either rank: they must come out otherwise."""
    batches = job.train_batches(1)
    if not batches or len(batches[0].ids) == 0:
        return None
    outputs = [
        [_augmented(job, batches[0], rank, epoch) for rank in range(NUM_RANKS)]
        for epoch in range(_NUM_EPOCHS)
    ]
    draws = any(_varies(ranks[0]) for ranks in outputs)
    if not draws or not all(same_tensors(*ranks) for ranks in outputs):
        return None
    return _Differing(
        words=f"augment gives {_NUM_COPIES} copies of one example the same draws under other ids, "
        f"in each of {_NUM_EPOCHS} epochs: every batch, and every rank, is changed alike",
        fix=_AUGMENT_FIX,
    )


def _augmented(job: CheckedJob, batch: Batch, rank: int, epoch: int) -> list[Tensor]:
    one = take(batch, torch.zeros(_NUM_COPIES, dtype=torch.int64))
    ids = torch.arange(_NUM_COPIES) + rank * _NUM_COPIES
    state = step_seed(job.recipe.seed, 0, rank)
    changed = augmented_again(job, one._replace(ids=ids), epoch=epoch, state=state)
    return tensors_of(changed.inputs)


def _varies(tensors: list[Tensor]) -> bool:
    """Return True if copies of one example came out otherwise."""
    return any(tensor.dim() > 0 and bool((tensor != tensor[:1]).any()) for tensor in tensors)


def broken() -> Example:
    """First weights that are seeded with the rank as well."""

    class ByRank(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            torch.manual_seed(recipe.seed + int(os.environ.get("RANK", "0")))
            return super().build_model(recipe)

    return Example(task=ByRank())


CHECK = Check(
    name="ranks_differ",
    reason="Ranks whose weights begin otherwise train models of their own, those whose data differ "
    "leave examples out, and those that draw alike augment less than they seem to.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook (seeds of several hosts); PyTorch, "
    "notes on DistributedDataParallel and on DistributedSampler",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("ranks_differ", "seeds_wrong"),
    run=ranks_differ,
    broken=broken,
    least_s=5.0,
)

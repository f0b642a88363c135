"""Ranks start with the same weights and data, but draw different random numbers."""

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
from stepladder.data.order.hosts import rank_slice
from stepladder.data.order.order import Order
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.training.randomness import step_seed

_MAX_POSITIONS = 100_000  # of an epoch whose order is checked
_NUM_COPIES = 8  # of one example, augmented for each rank
_NUM_EPOCHS = 4
_FRESH_S = 10.0  # that must be left for another interpreter
_SEED_FIX = "In build_model, do not use the rank: seed with recipe.seed, the same on every rank."
_DATA_FIX = (
    "Return the same examples in the same order on every rank: stepladder splits each batch by "
    "rank. Sort what comes from a set, as its order differs between processes."
)
_DRAW_FIX = (
    "Draw random numbers from torch's or NumPy's global generator, or from one seeded by (seed, "
    "rank, row)."
)
_AUGMENT_FIX = (
    "Seed the random numbers of each example by (seed, epoch, id), not by its place in the batch."
)


@dataclass(frozen=True, kw_only=True)
class _Differing:
    """A difference between two ranks.

    Attributes:
        words: what it is.
        fix: what to do.
    """

    words: str
    fix: str


def ranks_differ(job: CheckedJob) -> Answer:
    """Build model and data as ranks 0 and 1 of 2, each in its own process, and compare.

    Weights and data must be equal; the examples that each rank trains on, and random draws, must
    differ.
    """
    is_several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    severity = Severity.ERROR if is_several else None
    if not can_look(job):
        return not_applicable("processes cannot be forked here, and the Task is not in a file")
    is_fresh = has_file(job) and job.left_s() > _FRESH_S
    views = [*views_of(job, 0), *views_of(job, 1, fresh=is_fresh)]
    differing = _differing(*views)
    if differing is not None:
        if _differing(*views_of(job, 0, num_looks=2)) is not None:
            return not_applicable(
                "weights or data differ even if one rank builds them twice: see the check `seeds`"
            )
        return found("ranks_differ", differing.words, fix=differing.fix, severity=severity)
    counts = _epoch(job)
    if counts is not None and counts.max() > 1:
        twice = int((counts > 1).sum())
        return found(
            "ranks_differ",
            f"in an epoch of several processes (ranks), {twice} examples would be trained on by "
            "two of them, and therefore count twice",
            fix="This is a bug in stepladder. Please report it, with the config.yaml of the job; "
            "until then, train on one device: --devices 1",
        )
    drawn = _draws_alike(*views) or _augments_alike(job)
    if drawn is not None:
        return found("seeds_wrong", drawn.words, fix=drawn.fix)
    shared = "" if counts is None else f"; each of {counts.sum()} examples goes to one rank"
    return passed(
        f"ranks 0 and 1 of {NUM_RANKS} start with the same {len(views[0].weights)} weights and the "
        f"same data{shared}",
        coverage=None
        if is_fresh or not has_file(job)
        else "the Task as it is, without loading its file again",
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
            words=f"{len(weights)} of {len(first.weights)} initial weights differ between ranks 0 "
            f"and 1, such as {weights[0]}: each rank would train a different model",
            fix=_SEED_FIX,
        )
    splits = other_keys(first.data, second.data)
    if splits:
        return _Differing(words=f"data({splits[0]}) does not exist on every rank", fix=_DATA_FIX)
    for split, rows in first.data.items():
        words = other_rows(rows, second.data[split], names=("rank 0", "rank 1"))
        if words is not None:
            return _Differing(words=f"data({split}) differs between ranks: {words}", fix=_DATA_FIX)
    return None


# --- what must differ


def _epoch(job: CheckedJob) -> np.ndarray | None:
    """Split an epoch over two ranks as in the run; None for a stream.

    Returns:
        How often each row is assigned to a rank, (num_examples,).
    """
    if isinstance(job.sources.train, ArrivalSource):
        return None
    order = order_of(job.recipe.data, job.sources.train, seed=job.recipe.seed)
    num_positions = min(order.num_samples, _MAX_POSITIONS)
    return given(order, job.recipe.batch.global_batch_size, num_positions)


def given(order: Order, global_batch_size: int, num_positions: int) -> np.ndarray:
    """Count how often each row is assigned to a rank in the first positions of an epoch.

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
    """Check for draws that are the same on both ranks, and depend on the number of reads.

    Draws seeded by (row, count) are the same too, but sound, as ranks read different rows: they do
    not change after another example was read.
    """
    if not first.draws or _same(first.draws, second.draws) is False:
        return None
    is_constant = all(alike(first.draws[0], numbers) for numbers in first.draws)
    if is_constant or _same(first.draws, first.later_draws):
        return None
    return _Differing(
        words=f"ranks 0 and 1, with different seeds, read one example {len(first.draws)} times and "
        "drew the same random numbers: the dataset has its own generator with the same seed in "
        "every "
        "process",
        fix=_DRAW_FIX,
    )


def _same(first: tuple[tuple[float, ...], ...], second: tuple[tuple[float, ...], ...]) -> bool:
    return len(first) == len(second) and all(map(alike, first, second))


def _augments_alike(job: CheckedJob) -> _Differing | None:
    """Augment copies of one example with the ids of either rank: the results must differ."""
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
        words=f"augment() uses the same random numbers for {_NUM_COPIES} copies of one example, "
        f"although their ids differ, in each of {_NUM_EPOCHS} epochs: every batch and rank is "
        "augmented in the same way",
        fix=_AUGMENT_FIX,
    )


def _augmented(job: CheckedJob, batch: Batch, rank: int, epoch: int) -> list[Tensor]:
    one = take(batch, torch.zeros(_NUM_COPIES, dtype=torch.int64))
    ids = torch.arange(_NUM_COPIES) + rank * _NUM_COPIES
    state = step_seed(job.recipe.seed, 0, rank)
    changed = augmented_again(job, one._replace(ids=ids), epoch=epoch, state=state)
    return tensors_of(changed.inputs)


def _varies(tensors: list[Tensor]) -> bool:
    """Return True if copies of one example differ."""
    return any(tensor.dim() > 0 and bool((tensor != tensor[:1]).any()) for tensor in tensors)


def broken() -> Example:
    """Initial weights that are seeded by rank."""

    class ByRank(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            torch.manual_seed(recipe.seed + int(os.environ.get("RANK", "0")))
            return super().build_model(recipe)

    return Example(task=ByRank())


CHECK = Check(
    name="ranks_differ",
    reason="Ranks with different initial weights train different models, ranks with different data "
    "miss examples, and ranks with the same draws augment less than they seem to.",
    source="Godbole et al. 2023, Deep Learning Tuning Playbook (seeds of several hosts); PyTorch, "
    "notes on DistributedDataParallel and on DistributedSampler",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("ranks_differ", "seeds_wrong"),
    run=ranks_differ,
    broken=broken,
    least_s=5.0,
)

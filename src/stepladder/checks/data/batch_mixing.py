"""Batches mix several classes, and each epoch has a different order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.classes import class_labels
from stepladder.checks.evidence.sample import merge, tensors_of
from stepladder.checks.examples import Example, SoundPictures, draw, labelled, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import OrderMode, Split
from stepladder.config.recipe import DataConfig
from stepladder.data.batch import Batch
from stepladder.data.order.order import Order
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity

_WINDOW = 32  # minimum number of examples to count classes in: a batch of 2 says little
_MAX_WINDOWS = 200
_NUM_WINDOWS = 4  # windows read where the labels are not known in advance
_POOR = 0.5  # of the class entropy that shuffled windows would have
_NUM_ARRIVED = 8  # batches of a stream
_NUM_SHUFFLES = 8
_ONE_EPOCH = 1

Ints = NDArray[np.int64]


def batch_mixing(job: CheckedJob) -> Answer:
    """Count the classes in consecutive batches, and compare the order of two epochs."""
    if isinstance(job.sources.train, ArrivalSource):
        return _of_stream(job)
    order = _order(job)
    size = max(_WINDOW, job.recipe.batch.global_batch_size)
    num = min(order.num_samples, size * _MAX_WINDOWS)
    first = order.samples(0, 0, num)
    answer = _by_labels(job, first, size)
    if answer is not None:
        return answer
    if job.recipe.schedule.max_epochs <= _ONE_EPOCH:
        return passed("training has one epoch, so there is only one order")
    if np.array_equal(first, order.samples(1, 0, num)) and num > 1:
        return found(
            "no_shuffle",
            f"epochs 0 and 1 have the same order ({num} examples compared): every epoch repeats "
            "the same batches",
            fix="Shuffle: --data.order global.",
            severity=Severity.WARNING,
        )
    return passed(
        f"the first {num} examples of epochs 0 and 1 are in different orders, with mixed classes"
    )


def _by_labels(job: CheckedJob, first: Ints, size: int) -> Answer | None:
    """Check the classes of examples in epoch order: of all, or of those read first."""
    known = class_labels(job, Split.TRAIN)
    if known is None:
        return None
    if known.is_all:
        return _unmixed(known.values[first], known.values, size)
    num_batches = -(-_NUM_WINDOWS * size // job.recipe.batch.global_batch_size)
    batches = job.train_batches(num_batches)
    return _unmixed(torch.cat([b.targets for b in batches]).cpu().numpy(), known.values, size)


def _order(job: CheckedJob) -> Order:
    """Return the order that the run's reader uses."""
    return order_of(job.recipe.data, job.sources.train, seed=job.recipe.seed)


def _unmixed(labels: Ints, pool: Ints, size: int) -> Answer | None:
    """Compare the entropy of classes within windows with that of shuffled ones."""
    if len(labels) < 2 * size:
        return None
    seen = _entropy_within(labels, size)
    random = np.random.default_rng(0)
    draws = [_entropy_within(random.choice(pool, len(labels)), size) for _ in range(_NUM_SHUFFLES)]
    shuffled = float(np.mean(draws))
    if shuffled == 0 or seen >= _POOR * shuffled:
        return None
    return found(
        "unmixed_batches",
        f"{size} consecutive training examples have {np.exp(seen):.1f} different classes on "
        f"average, but would have {np.exp(shuffled):.1f} if they were shuffled: the data are "
        "sorted by class",
        fix="Shuffle: --data.order global, or shuffle in the dataset.",
        classes_in_a_row=float(np.exp(seen)),
        classes_shuffled=float(np.exp(shuffled)),
    )


def _entropy_within(labels: Ints, size: int) -> float:
    """Return the mean entropy of the classes in windows of some size, in nats."""
    _, marks = np.unique(labels, return_inverse=True)
    entropies = []
    for start in range(0, len(marks) - size + 1, size):
        counts = np.bincount(marks[start : start + size])
        share = counts[counts > 0] / size
        entropies.append(float(-(share * np.log(share)).sum()))
    return float(np.mean(entropies))


def _of_stream(job: CheckedJob) -> Answer:
    """Compare the first examples of two passes over an IterableDataset."""
    first = job.train_batches(_NUM_ARRIVED)
    if not first:
        return not_applicable("the training dataset, an IterableDataset, returns no examples")
    targets = [batch.targets for batch in first]
    if all(isinstance(part, Tensor) and not part.is_floating_point() for part in targets):
        labels = torch.cat([part.reshape(-1) for part in targets]).cpu().numpy()
        answer = _one_class(job, labels)
        if answer is not None:
            return answer
    if job.recipe.schedule.max_epochs > _ONE_EPOCH and _is_repeated(job, first):
        return found(
            "no_shuffle",
            f"two epochs of the training stream begin with the same {len(merge(first).ids)} "
            "examples in the same order: every epoch repeats the same batches",
            fix="Shuffle in __iter__ with a different seed each epoch, such as through a shuffle "
            "buffer of a few thousand examples.",
            severity=Severity.WARNING,
            coverage=f"the first {len(first)} batches",
        )
    return passed(
        "the first batches of the training stream are mixed",
        coverage=f"the first {len(first)} batches",
    )


def _one_class(job: CheckedJob, labels: Ints) -> Answer | None:
    num_classes = job.num_classes
    if num_classes is None or num_classes < 2 or len(labels) < _WINDOW:
        return None
    if labels.min() != labels.max():
        return None
    return found(
        "unmixed_batches",
        f"the first {len(labels)} examples of the training stream are all of class {labels[0]} (of "
        f"{num_classes} classes): the data are sorted by class",
        fix="Interleave files of all classes in __iter__, or use a shuffle buffer.",
        coverage=f"the first {len(labels)} examples",
    )


def _is_repeated(job: CheckedJob, first: list[Batch]) -> bool:
    """Return True if a second pass over the stream yields the same batches."""
    source = job.sources.train
    assert isinstance(source, ArrivalSource)
    again = source.arrivals()
    for batch in first:
        items = [item for _, item in zip(range(len(batch.ids)), again, strict=False)]
        if len(items) < len(batch.ids):
            return False
        inputs = source.collate(items).inputs
        pairs = zip(tensors_of(batch.inputs), tensors_of(inputs), strict=False)
        if not all(torch.equal(one.cpu(), other.cpu()) for one, other in pairs):
            return False
    return True


def broken() -> Example:
    """Pictures sorted by class and read in file order."""

    class Sorted(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            order = numbers.argsort()
            return labelled(pictures[order], numbers[order])

    recipe = sound_recipe()
    in_turn = replace(recipe, data=DataConfig(order=OrderMode.SEQUENTIAL))
    return Example(task=Sorted(), recipe=in_turn)


CHECK = Check(
    name="batch_mixing",
    reason="With batches of a single class, a model learns to predict that class, then the next.",
    source="Bottou 2012, Stochastic Gradient Descent Tricks (shuffle the examples)",
    severity=Severity.ERROR,
    tier=Tier.FAST,
    faults=("unmixed_batches", "no_shuffle"),
    run=batch_mixing,
    broken=broken,
)

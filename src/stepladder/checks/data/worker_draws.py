"""Examples of one batch, and of several workers, are augmented by draws of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.sample import clone, same_tensors, take, tensors_of
from stepladder.checks.evidence.workers import can_fork, random_dataset, read_in_workers
from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity

_NUM_READS = 8  # by each worker, of one example
_NUM_ALIKE = 8  # copies of an example in a batch
_NUM_EPOCHS = 4

_EACH_FIX = "Draw for each example from (seed, epoch, its id), not once for the batch."
_WORKER_FIX = (
    "Draw from torch's or NumPy's global state, which each worker has a seed of its own for, or "
    "make the generator in the worker."
)


def worker_draws(job: CheckedJob) -> Answer:
    """Augment copies of one example, and read one example in two worker processes."""
    alike = _augments_alike(job)
    if alike:
        return found(
            "same_draws_in_workers",
            f"augment gives {_NUM_ALIKE} copies of one example, under ids of their own, the same "
            f"draw, and another one in another epoch ({_NUM_EPOCHS} looked at): a whole batch is "
            "changed alike",
            fix=_EACH_FIX,
        )
    data = random_dataset(job)
    if data is None:
        what = "are not augmented" if alike is None else "get draws of their own"
        return passed(f"examples of a batch {what}; the dataset draws nothing")
    if not can_fork():
        return not_applicable("worker processes cannot be forked here")
    seen = read_in_workers(data, [0] * (2 * _NUM_READS), num_workers=2, seed=0)
    first, second = seen[0::2], seen[1::2]
    if first != second or len(set(first)) == 1:
        return passed(
            f"two worker processes read one example {_NUM_READS} times each, and drew otherwise",
            num_different=sum(a != b for a, b in zip(first, second, strict=True)),
        )
    return found(
        "same_draws_in_workers",
        f"two worker processes read one example {_NUM_READS} times each, and drew the same in the "
        "same order: the dataset's generator was made before they were",
        fix=_WORKER_FIX,
    )


def _augments_alike(job: CheckedJob) -> bool | None:
    """Return True if augment draws once for a batch; None: it changes nothing, or draws nothing.

    What it does to one example under several ids is compared over epochs: a fixed change, such as
    a normalisation, is the same in each.
    """
    batches = job.train_batches(1)
    if not batches or len(batches[0].ids) == 0 or isinstance(batches[0].inputs, str):
        return None
    one = take(batches[0], torch.zeros(_NUM_ALIKE, dtype=torch.int64))
    batch = one._replace(ids=torch.arange(_NUM_ALIKE) * 7 + 1)
    outputs = []
    for epoch in range(_NUM_EPOCHS):
        outputs.append(tensors_of(job.augmented(clone(batch), epoch=epoch).inputs))
    if not outputs[0] or all(same_tensors(outputs[0], other) for other in outputs[1:]):
        return None
    return all(
        value.dim() > 0 and bool((value == value[:1]).all())
        for output in outputs
        for value in output
    )


class _OwnGenerator(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with noise from a generator that is made once."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels
        self.random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        noise = self.random.normal(size=self.pictures.shape[1:]).astype(np.float32)
        return self.pictures[row] + 0.1 * torch.from_numpy(noise), self.labels[row]


def broken() -> Example:
    """A dataset with a generator of its own, which every worker gets a copy of."""

    class Seeded(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            if split is not Split.TRAIN:
                return super().data(split)
            return _OwnGenerator(*draw(split))

    return Example(task=Seeded())


CHECK = Check(
    name="worker_draws",
    reason="Where all examples are changed alike, augmentation is worth a fraction of what it "
    "costs.",
    source="PyTorch documentation, Randomness in multi-process data loading; Stack Overflow "
    "67180955 (NumPy draws alike in all workers)",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("same_draws_in_workers",),
    run=worker_draws,
    broken=broken,
    least_s=2.0,
)

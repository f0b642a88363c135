"""Examples of one batch, and of different workers, are augmented independently."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.sample import clone, same_tensors, take, tensors_of
from stepladder.checks.evidence.workers import (
    NO_FORK,
    can_fork,
    random_dataset,
    read_in_workers,
)
from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity

_NUM_READS = 8  # reads of one example by each worker
_NUM_ALIKE = 8  # copies of an example in a batch
_NUM_EPOCHS = 4

_EACH_FIX = (
    "Draw random numbers for each example, from a generator seeded with (seed, epoch, id of the "
    "example)."
)
_WORKER_FIX = (
    "Draw random numbers from torch's or NumPy's global generator, which is seeded per worker, or "
    "create the generator in the worker, seeded with torch.utils.data.get_worker_info().seed."
)


def worker_draws(job: CheckedJob) -> Answer:
    """Augment copies of one example, and read one example in two worker processes."""
    alike = _augments_alike(job)
    if alike:
        return found(
            "same_draws_in_workers",
            f"augment() changed all {_NUM_ALIKE} copies of one example in the same way, although "
            f"their ids differ, but in another way in other epochs ({_NUM_EPOCHS} compared). It "
            "draws its random numbers once per batch instead of once per example",
            fix=_EACH_FIX,
        )
    data = random_dataset(job)
    if data is None:
        what = "are not augmented" if alike is None else "are augmented independently"
        return passed(f"examples of a batch {what}; the dataset draws no random numbers")
    if not can_fork():
        return not_applicable(NO_FORK)
    seen = read_in_workers(data, [0] * (2 * _NUM_READS), num_workers=2, seed=0)
    first, second = seen[0::2], seen[1::2]
    if first != second or len(set(first)) == 1:
        return passed(
            f"two worker processes that read one example {_NUM_READS} times drew different random "
            "numbers",
            num_different=sum(a != b for a, b in zip(first, second, strict=True)),
        )
    return found(
        "same_draws_in_workers",
        f"two worker processes that read one example {_NUM_READS} times drew the same random "
        "numbers in the same order, so their examples are augmented alike: the dataset's random "
        "generator was created before the workers, and each has a copy of it",
        fix=_WORKER_FIX,
    )


def _augments_alike(job: CheckedJob) -> bool | None:
    """Return True if augment draws once for a batch; None if it changes or draws nothing.

    Copies of one example with different ids are compared over epochs: a fixed change, such as
    normalisation, is the same in each.
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
    """Pictures with noise from a generator that is created once."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels
        self.random = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        noise = self.random.normal(size=self.pictures.shape[1:]).astype(np.float32)
        return self.pictures[row] + 0.1 * torch.from_numpy(noise), self.labels[row]


def broken() -> Example:
    """A dataset with its own generator, which is copied to every worker."""

    class Seeded(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            if split is not Split.TRAIN:
                return super().data(split)
            return _OwnGenerator(*draw(split))

    return Example(task=Seeded())


CHECK = Check(
    name="worker_draws",
    reason="If all examples are changed in the same way, augmentation helps far less.",
    source="PyTorch documentation, Randomness in multi-process data loading; Stack Overflow "
    "67180955 (NumPy draws the same numbers in all workers)",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("same_draws_in_workers",),
    run=worker_draws,
    broken=broken,
    least_s=2.0,
)

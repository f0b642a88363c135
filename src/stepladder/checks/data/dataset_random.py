"""A dataset that draws random numbers draws the same ones with the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
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

_NUM_ROWS = 8


def dataset_random(job: CheckedJob) -> Answer:
    """Read a few examples in two processes with the same seed, and compare."""
    data = random_dataset(job)
    if data is None:
        return not_applicable(
            "the training dataset draws no random numbers when it reads an example"
        )
    if not can_fork():
        return not_applicable(NO_FORK)
    rows = list(range(min(_NUM_ROWS, len(job.sources.train))))
    first, second = (read_in_workers(data, rows, num_workers=1, seed=0) for _ in range(2))
    num = sum(a != b for a, b in zip(first, second, strict=True))
    if num == 0:
        return passed(f"{len(rows)} examples are the same in two processes with the same seed")
    return found(
        "not_reproducible",
        f"{num} of {len(rows)} examples differ between two processes with the same seed: the "
        "dataset's random numbers are not seeded, so runs are not reproducible",
        fix="Draw random numbers from torch's or NumPy's global generator, or from one seeded by "
        "(seed, row).",
        num_different=num,
    )


class _FromSystem(Dataset[tuple[Tensor, Tensor]]):
    """Pictures with unseeded noise."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = pictures, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        noise = np.random.default_rng().normal(size=self.pictures.shape[1:])
        return self.pictures[row] + 0.1 * torch.from_numpy(noise).float(), self.labels[row]


def broken() -> Example:
    """A dataset whose noise comes from the operating system."""

    class Unseeded(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            if split is not Split.TRAIN:
                return super().data(split)
            return _FromSystem(*draw(split))

    return Example(task=Unseeded())


CHECK = Check(
    name="dataset_random",
    reason="A result that is not reproducible can neither be checked nor compared.",
    source="PyTorch documentation, Reproducibility",
    severity=Severity.WARNING,
    tier=Tier.FULL,
    faults=("not_reproducible",),
    run=dataset_random,
    broken=broken,
    least_s=2.0,
)

"""Splits whose classes have other shares, apart from splits whose pictures differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.data import distribution
from stepladder.checks.examples import NUM_CLASSES, SIZE, Example, SoundPictures, labelled
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

EVEN, FEW, MANY = (25, 25, 25, 25), (40, 40, 12, 8), (8, 12, 40, 40)
COUNTS = {Split.TRAIN: EVEN, Split.VAL: FEW, Split.TEST: MANY}


def drawn(split: Split, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Draw twice as many pictures of each class as counts say, shuffled."""
    generator = torch.Generator().manual_seed(list(Split).index(split))
    labels = torch.repeat_interleave(torch.arange(NUM_CLASSES), 2 * torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    patterns = torch.randn(NUM_CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(len(labels), 3, SIZE, SIZE, generator=generator)
    return 0.6 * patterns[labels] + 0.8 * noise, labels


class Sealed(Dataset[Any]):
    """Pictures whose labels are not numbers, so that nothing can use them."""

    def __init__(self, pictures: Tensor) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, row: int) -> Any:
        return self.pictures[row], torch.nan


class OtherShares(SoundPictures):
    """Classes 0 and 1 are 80 % of validation and 20 % of test; labels of test are unreadable."""

    cast = 0.0

    def data(self, split: Split) -> Dataset[Any]:
        pictures, labels = drawn(split, COUNTS[split])
        return Sealed(pictures + self.cast) if split is Split.TEST else labelled(pictures, labels)


class OtherSharesAndCamera(OtherShares):
    """Test pictures have a colour cast as well."""

    cast = 0.5


class OtherTrain(SoundPictures):
    """Train has other shares than validation and test, which have the same."""

    def data(self, split: Split) -> Dataset[Any]:
        return labelled(*drawn(split, EVEN if split is Split.TRAIN else (4, 6, 45, 45)))


class Numbers(OtherShares):
    """A number is predicted, so that there are no classes: only clusters of pictures."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 1))

    def data(self, split: Split) -> Dataset[Any]:
        pictures, labels = drawn(split, COUNTS[split])
        pictures = 1.5 * pictures + (self.cast if split is Split.TEST else 0)
        return TensorDataset(pictures, labels + torch.linspace(0, 1, len(labels)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch.inputs)[:, 0], batch.targets, reduction="none")


class NumbersOfAnotherCamera(Numbers):
    """The same, and test has a colour cast."""

    cast = 1.0


def look(task: Task, folder: Path) -> Finding:
    config = Example(task=task).config(folder)
    return run_check(distribution.CHECK, open_job(config, task, task_name="example"))


@pytest.mark.parametrize(
    ("kind", "outcome", "word"),
    [
        (OtherShares, Outcome.WARNED, "label shift: class "),
        (OtherSharesAndCamera, Outcome.FAILED, "examples of one class differ"),
        (OtherTrain, Outcome.WARNED, "label shift: class "),
        (Numbers, Outcome.WARNED, "label shift: the cluster around "),
        (NumbersOfAnotherCamera, Outcome.FAILED, "distinguishes val from test"),
    ],
)
def test_shares_are_a_warning_and_pictures_an_error(
    kind: type[Task], outcome: Outcome, word: str, tmp_path: Path
) -> None:
    finding = look(kind(), tmp_path)
    assert (finding.fault, finding.outcome) == ("distribution_shift", outcome), finding
    assert word in finding.evidence


def test_the_most_shifted_class_has_both_shares(tmp_path: Path) -> None:
    finding = look(OtherShares(), tmp_path)
    said = re.match(
        r"label shift: class (\d) is (\d+) % of val and about (\d+) % of test; ", finding.evidence
    )
    assert said is not None, finding.evidence
    label, val, test = map(int, said.groups())
    assert val == FEW[label]
    assert test == pytest.approx(MANY[label], abs=6)
    assert "stratified" in finding.fix


def test_shares_of_test_are_those_of_a_manifest(build_store: Any, tmp_path: Path) -> None:
    build_store(tmp_path / "store", num_rows={"train": 20, "val": 5, "test": 7})
    task = ImageClassification(tmp_path / "store")
    config = Example(task=task).config(tmp_path)  # type: ignore[arg-type]
    job = open_job(config, task, task_name="image_classification")
    listed = job.listed_counts(Split.TEST)
    assert listed is not None
    assert np.array_equal(listed, [3, 2, 2])

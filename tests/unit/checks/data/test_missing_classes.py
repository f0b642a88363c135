"""Classes found by reading only: samples raise a suspicion, and more rows settle it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from stepladder.checks.data.missing_classes import CHECK
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.records.findings import Finding, Outcome

NUM = 2000
CUTS = {Split.TRAIN: (0, 1200), Split.VAL: (1200, 1600), Split.TEST: (1600, NUM)}


class Sorted(SoundPictures):
    """Rows sorted by class, split in that order."""

    def labels(self) -> Tensor:
        return torch.arange(NUM) * 4 // NUM

    def order(self) -> Tensor:
        return torch.arange(NUM)

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
        x = torch.randn(NUM, 3, 12, 12, generator=torch.Generator().manual_seed(1))
        first, last = CUTS[split]
        return Subset(TensorDataset(x, self.labels()), self.order()[first:last].tolist())


class Mixed(Sorted):
    """The same, shuffled before splitting."""

    def order(self) -> Tensor:
        return torch.randperm(NUM, generator=torch.Generator().manual_seed(2))


class ManyAndRare(Mixed):
    """Thirty classes, most of them rare."""

    def labels(self) -> Tensor:
        places = torch.rand(NUM, generator=torch.Generator().manual_seed(3))
        return (30 * places**4).long()


class InTurn(Sorted):
    """Classes alternate, so that an even sample may contain only some of them."""

    def labels(self) -> Tensor:
        return torch.arange(NUM) % 8


class RareLeftOut(Mixed):
    """Ten classes, one of them in one row of thirty, which validation lacks."""

    def labels(self) -> Tensor:
        drawn = torch.randint(9, (NUM,), generator=torch.Generator().manual_seed(4))
        rare = torch.rand(NUM, generator=torch.Generator().manual_seed(5)) < 1 / 30
        return drawn.where(~rare, torch.tensor(9))

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
        data = super().data(split)
        assert isinstance(data, Subset)
        if split is Split.VAL:
            data.indices = [row for row in data.indices if self.labels()[row] != 9]
        return data


class NewInVal(Sorted):
    """Train ends before the last class starts."""

    def labels(self) -> Tensor:
        return (torch.arange(NUM) % 3).where(torch.arange(NUM) < 1300, torch.tensor(3))


def look(task: Sorted, folder: Path) -> Finding:
    return run_check(CHECK, open_job(Example(task=task).config(folder), task, task_name="example"))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Sorted(), "none of 400 validation examples is of class 0, class 1"),
        (NewInVal(), "training examples is of class 3"),
        (RareLeftOut(), "validation examples is of class 9"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_class_that_a_split_lacks_is_found(task: Sorted, said: str, tmp_path: Path) -> None:
    finding = look(task, tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "missing_classes"), finding
    assert said in finding.evidence


@pytest.mark.parametrize(
    "task", [Mixed(), ManyAndRare(), InTurn()], ids=lambda task: type(task).__name__
)
def test_splits_with_all_classes_are_not_accused(task: Sorted, tmp_path: Path) -> None:
    assert not look(task, tmp_path).is_alarm


def test_an_even_sample_alone_would_accuse_classes_in_turn(tmp_path: Path) -> None:
    """Every sixteenth row of alternating classes shows one of eight; only more rows clear it."""

    class Aliased(InTurn):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            num = 127 * 16 + 1 if split is Split.VAL else 800
            x = torch.randn(num, 3, 12, 12, generator=torch.Generator().manual_seed(1))
            return TensorDataset(x, torch.arange(num) % 8)

    assert not look(Aliased(), tmp_path).is_alarm

"""The first loss and accuracy, compared with those of guessing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.examples import Example
from stepladder.checks.job import open_job
from stepladder.checks.loss.chance_level import CHECK
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task


def generator_of(split: Split) -> torch.Generator:
    return torch.Generator().manual_seed(list(Split).index(split))


class Columns(Task):
    """Eight columns; the class is the index of the largest of the first ones."""

    num_classes = 4
    num_rows = 200

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, self.num_classes))

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(self.num_rows, 8, generator=generator_of(split))
        return TensorDataset(x, self.labels_of(x))

    def labels_of(self, x: Tensor) -> Tensor:
        return x[:, : self.num_classes].argmax(1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class FewRows(Columns):
    """Four rows: their mean loss can be far from chance level."""

    num_rows = 4


class Rare(Columns):
    """One in twenty is of the second class, and the head starts without this prior."""

    num_classes = 2

    def labels_of(self, x: Tensor) -> Tensor:
        return (x[:, 0] > 1.645).long()


class Prior(Rare):
    """The head's bias starts with the log class frequencies."""

    shares = (0.95, 0.05)

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        with torch.no_grad():
            model[-1].bias.copy_(torch.tensor(self.shares).log())  # type: ignore[index, union-attr]
        return model


class WrongPrior(Prior):
    """The frequencies are assigned to the wrong classes: confident in rare ones."""

    shares = (0.05, 0.95)


class InBatch(Columns):
    """Contrastive: labels are indices in the batch, not those of the data."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 8))

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(200, 8, generator=generator_of(split))
        return TensorDataset(x, x + 0.1 * torch.randn(x.shape, generator=generator_of(split)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        one, other = (F.normalize(model(x), dim=1) for x in (batch.inputs, batch.targets))
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)), reduction="none")


class Segments(Task):
    """A class for each pixel; the border has none."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Conv2d(3, 3, 3, padding=1)

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(64, 3, 8, 8, generator=generator_of(split))
        labels = x.argmax(1)
        labels[:, :3] = 255
        return TensorDataset(x, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(
            model(batch.inputs), batch.targets, ignore_index=255, reduction="none"
        )
        return losses.flatten(1).mean(1)


class Tied(Task):
    """A language model with tied input and output embeddings."""

    is_by_module = True

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Language(is_by_module=self.is_by_module)

    def data(self, split: Split) -> Dataset[Any]:
        ids = torch.randint(0, 32, (64, 9), generator=generator_of(split))
        return TensorDataset(ids[:, :-1], ids[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).transpose(1, 2)
        return F.cross_entropy(scores, batch.targets, reduction="none").mean(1)


class TiedByHand(Tied):
    """The same, as a product with the transposed weights."""

    is_by_module = False


class Language(nn.Module):
    def __init__(self, *, is_by_module: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 48)
        self.head = nn.Linear(48, 32)
        self.is_by_module = is_by_module
        if is_by_module:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        features = self.embedding(ids)
        if self.is_by_module:
            scores: Tensor = self.head(features)
            return scores
        return features @ self.embedding.weight.T


class Penalised(Columns):
    """Cross-entropy and a penalty on large scores."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        entropies = F.cross_entropy(scores, batch.targets, reduction="none")
        return entropies + 1 + scores.square().sum(1)


class Peeking(Columns):
    """Ten classes; the class's column is added to its score: correct before any training."""

    num_classes = 10

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Peek()

    def data(self, split: Split) -> Dataset[Any]:
        x = 0.1 * torch.randn(200, 10, generator=generator_of(split))
        labels = torch.randint(0, 10, (200,), generator=generator_of(split))
        return TensorDataset(x + F.one_hot(labels, 10), labels)


class Peek(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = 0.1 * self.layer(x) + 0.2 * x
        return scores


def finding_of(task: Task, folder: Path) -> Finding:
    example = Example(task=task)
    return run_check(CHECK, open_job(example.config(folder), task, task_name="example"))


@pytest.mark.parametrize(
    "task", [Columns(), FewRows(), Rare(), Prior()], ids=lambda t: type(t).__name__
)
def test_a_fresh_head_passes(task: Task, tmp_path: Path) -> None:
    finding = finding_of(task, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding
    assert "its accuracy is" in finding.evidence


def test_a_head_with_the_classes_shares_is_compared_with_their_entropy(tmp_path: Path) -> None:
    assert "entropy of the class frequencies" in finding_of(Prior(), tmp_path).evidence
    assert "ln 2" in finding_of(Rare(), tmp_path).evidence


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (InBatch(), "targets are not passed unchanged to the loss"),
        (Segments(), "ignore_index"),
        (Tied(), "weights with an embedding"),
        (TiedByHand(), "weights with an embedding"),
        (Penalised(), "other terms"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_loss_that_need_not_be_that_of_guessing_is_left_alone(
    task: Task, reason: str, tmp_path: Path
) -> None:
    finding = finding_of(task, tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE, finding
    assert reason in finding.evidence


def test_a_head_with_the_shares_of_other_classes_is_found(tmp_path: Path) -> None:
    finding = finding_of(WrongPrior(), tmp_path)
    assert finding.fault == "loss_off_chance", finding
    assert finding.outcome is Outcome.WARNED


def test_hits_that_no_luck_gives_are_found(tmp_path: Path) -> None:
    finding = finding_of(Peeking(), tmp_path)
    assert finding.fault == "loss_off_chance", finding
    assert "its accuracy is 100 %" in finding.evidence
    assert finding.numbers["luck_p"] < 1e-3


def test_a_head_that_was_read_from_a_file_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    saved = Columns().build_model(Recipe())
    with torch.no_grad():
        saved[-1].weight.mul_(50)  # type: ignore[index, union-attr]

    class Learnt(Columns):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            model.load_state_dict(saved.state_dict())
            return model

    finding = finding_of(Learnt(), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE, finding
    assert "pretrained weights" in finding.evidence

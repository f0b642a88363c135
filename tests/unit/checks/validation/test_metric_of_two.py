"""Accuracy of one score per example: the threshold must match the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.checks.validation.metric_recomputed import CHECK
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Metrics


class Churn(SoundPictures):
    """Binary churn prediction with one logit each, (n,)."""

    border = 0.0
    share_of_leavers = 0.4

    def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed(4 + list(Split).index(split))
        x = torch.randn(200, 6, generator=generator)
        return TensorDataset(
            x, (torch.rand(200, generator=generator) < self.share_of_leavers) * 1.0
        )

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        scores = model(batch.inputs)
        hits = ((scores > self.border) == (batch.targets > 0.5)).float()
        return self.counted(self.loss(model, batch), hits, scores)

    def counted(self, losses: Tensor, hits: Tensor, scores: Tensor) -> Metrics:
        return Metrics(
            losses=losses,
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(hits.numel()))},
            outputs=scores,
        )


class HalfOfLogits(Churn):
    """Logits above 0.5, as if they were probabilities."""

    border = 0.5


class HalfOfLogitsNobodyLeaves(HalfOfLogits):
    """The same, on a split with one class."""

    share_of_leavers = 0.0


class Careful(Churn):
    """A threshold chosen on purpose."""

    border = -1.5


class Shares(Churn):
    """The model ends with a sigmoid, and returns (n, 1)."""

    border = 0.5

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        shares = model(batch.inputs).squeeze(1)
        return F.binary_cross_entropy(shares, batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        shares = model(batch.inputs).squeeze(1)
        hits = ((shares > self.border) == (batch.targets > 0.5)).float()
        return self.counted(self.loss(model, batch), hits, shares)


class SharesAboveZero(Shares):
    """Every probability is above 0."""

    border = 0.0


class SigmoidInLoss(Churn):
    """Logits become probabilities in the loss and in the metric."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        shares = torch.sigmoid(model(batch.inputs))
        return F.binary_cross_entropy(shares, batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        scores = model(batch.inputs)
        hits = (scores.sigmoid().round() == batch.targets).float()
        return self.counted(self.loss(model, batch), hits, scores)


class MeanOfMeans(Churn):
    """Each batch has equal weight, however short."""

    def counted(self, losses: Tensor, hits: Tensor, scores: Tensor) -> Metrics:
        return Metrics(
            losses=losses,
            sums={"accuracy": hits.mean()},
            counts={"accuracy": torch.ones(())},
            outputs=scores,
        )


def look(task: Churn, folder: Path) -> Finding:
    return run_check(CHECK, open_job(Example(task=task).config(folder), task, task_name="example"))


@pytest.mark.parametrize(
    "task",
    [HalfOfLogits(), HalfOfLogitsNobodyLeaves(), SharesAboveZero(), MeanOfMeans()],
    ids=lambda task: type(task).__name__,
)
def test_an_accuracy_of_another_border_is_found(task: Churn, tmp_path: Path) -> None:
    finding = look(task, tmp_path)
    assert (finding.fault, finding.outcome) == ("metric_wrong", Outcome.FAILED), finding


@pytest.mark.parametrize(
    "task",
    [Churn(), Careful(), Shares(), SigmoidInLoss()],
    ids=lambda task: type(task).__name__,
)
def test_an_accuracy_of_the_loss_s_border_or_a_chosen_one_passes(
    task: Churn, tmp_path: Path
) -> None:
    finding = look(task, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding


def test_one_threshold_is_distinguished_from_the_other(tmp_path: Path) -> None:
    assert "threshold of 0.5" in look(HalfOfLogits(), tmp_path).evidence
    assert "threshold of 0 for logits" in look(HalfOfLogits(), tmp_path).fix

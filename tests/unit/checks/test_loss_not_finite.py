"""A loss that is NaN from the start: reported once, and nothing unseen is marked as passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.contract import Check
from stepladder.checks.data import not_finite, not_finite_all
from stepladder.checks.examples import Example
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.loss import chance_level
from stepladder.checks.model import gradients_reach
from stepladder.checks.optimisation import parameters_move, reproducible
from stepladder.checks.order import CHECKS
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Outcome
from stepladder.task.contract import Task


class Lost(Task):
    """Finite columns and labels, and the logarithm of a negative number in the loss."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(list(Split).index(split)))
        return TensorDataset(x, x[:, :4].argmax(1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return (-losses).log()


class LostForOne(Lost):
    """A weighted mean over an empty set, for the one row without positive numbers."""

    def data(self, split: Split) -> Dataset[Any]:
        x, y = super().data(split).tensors  # type: ignore[attr-defined]
        x = torch.cat([x, -torch.ones(1, 8)]) if split is Split.TRAIN else x.abs()
        return TensorDataset(x, torch.cat([y, y[:1]])[: len(x)])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        weights = (batch.inputs > 0).float()
        mean = (batch.inputs * weights).sum(1) / weights.sum(1)
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return losses + 0 * mean


class LostByAugmenting(Lost):
    """Each row is divided by a standard deviation of 0."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        return batch._replace(inputs=batch.inputs / 0 * 0)


class LostGradient(Lost):
    """The root of 0: the value is finite, the derivative is not."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        penalty = (scores - scores.detach()).square().sum(1).sqrt()
        return F.cross_entropy(scores, batch.targets, reduction="none") + penalty


def job_of(task: Task, folder: Path) -> CheckedJob:
    return open_job(Example(task=task).config(folder), task, task_name="example")


def test_the_finite_check_fails_alone_and_the_others_say_why_they_do_not_apply(
    tmp_path: Path,
) -> None:
    job = job_of(Lost(), tmp_path)
    findings = {
        check.name: run_check(check, job)
        for check in CHECKS
        if check.needs_loss or check.name in ("not_finite", "reproducible", "initialisation")
    }
    failed = [finding for finding in findings.values() if finding.is_alarm]
    assert [finding.check for finding in failed] == ["not_finite"]
    assert failed[0].fault == "loss_not_finite"
    for check in CHECKS:
        if check.needs_loss:
            assert findings[check.name].outcome is Outcome.NOT_APPLICABLE
            assert "not finite" in findings[check.name].evidence
    assert findings["reproducible"].outcome is Outcome.NOT_APPLICABLE


def test_one_example_whose_loss_is_not_finite_is_found_and_named(tmp_path: Path) -> None:
    job = job_of(LostForOne(), tmp_path)
    assert 64 not in job.train_batches(1)[0].ids.tolist()
    finding = run_check(not_finite_all.CHECK, job)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "loss_not_finite"), finding
    assert finding.numbers["num"] == 1
    assert "64" in finding.examples[0]
    assert run_check(chance_level.CHECK, job).outcome is not Outcome.WARNED


def test_an_augmentation_that_makes_nan_is_named(tmp_path: Path) -> None:
    finding = run_check(not_finite.CHECK, job_of(LostByAugmenting(), tmp_path))
    assert finding.fault == "not_finite_data"
    assert "augment()" in finding.evidence


def test_a_gradient_that_is_nan_under_a_finite_loss_is_found(tmp_path: Path) -> None:
    job = job_of(LostGradient(), tmp_path)
    finding = run_check(gradients_reach.CHECK, job)
    assert finding.fault == "loss_not_finite", finding
    assert "4 of 4 weights" in finding.evidence
    assert run_check(not_finite.CHECK, job).outcome is Outcome.PASSED


@pytest.mark.parametrize("check", [parameters_move.CHECK, reproducible.CHECK], ids=lambda c: c.name)
def test_steps_that_were_not_taken_are_neither_passed_nor_blamed(
    check: Check, tmp_path: Path
) -> None:
    finding = run_check(check, job_of(LostGradient(), tmp_path))
    assert finding.outcome is Outcome.NOT_APPLICABLE, finding
    assert "not finite" in finding.evidence

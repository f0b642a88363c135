"""The examples that checks inspect: augmented as in the run, or as stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Check
from stepladder.checks.evidence.sample import training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.optimisation.overfit_one_batch import one_batch
from stepladder.checks.order import CHECKS
from stepladder.checks.run import run_check
from stepladder.data.batch import Batch
from stepladder.records.findings import Outcome


class Noisy(SoundPictures):
    """Masks most of each training picture."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        del seed, epoch
        return batch._replace(inputs=torch.zeros_like(batch.inputs))


class TwoViews(SoundPictures):
    """Its loss compares two views, which augmentation creates."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        del seed, epoch
        return batch._replace(inputs=torch.stack([batch.inputs, batch.inputs.flip(3)], 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        one, other = batch.inputs.unbind(1)
        return F.mse_loss(model(one), model(other), reduction="none").mean(1)


def opened(task: SoundPictures, folder: Path) -> CheckedJob:
    return open_job(Example(task=task).config(folder), task, task_name="example")


def test_a_sample_is_augmented_as_in_the_run_unless_it_is_not_wanted(tmp_path: Path) -> None:
    job = opened(Noisy(), tmp_path)
    assert not training_sample(job, 8).inputs.any()
    plain = training_sample(job, 8, is_augmented=False)
    assert plain.inputs.any()
    assert torch.equal(plain.ids, training_sample(job, 8).ids)


def test_the_batch_that_is_learnt_by_heart_is_not_augmented(tmp_path: Path) -> None:
    assert one_batch(opened(Noisy(), tmp_path)).inputs.any()


def test_a_loss_that_needs_its_views_gets_them(tmp_path: Path) -> None:
    job = opened(TwoViews(), tmp_path)
    assert training_sample(job, 8, is_augmented=False).inputs.dim() == 5


@pytest.fixture(name="two_views", scope="module")
def _two_views(tmp_path_factory: pytest.TempPathFactory) -> CheckedJob:
    return opened(TwoViews(), tmp_path_factory.mktemp("two views"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_no_check_stumbles_over_a_loss_that_needs_its_views(
    check: Check, two_views: CheckedJob
) -> None:
    finding = run_check(check, two_views)
    assert finding.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE), finding

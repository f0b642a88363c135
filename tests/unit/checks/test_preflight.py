"""The fast checks before a training, limited by the predicted training time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from stepladder.checks import preflight
from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.preflight import check_before_training, expected_epochs, predicted_s
from stepladder.checks.report_file import write_checks
from stepladder.config.recipe import Recipe, ScheduleConfig, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.data.reading.datasets import as_source
from stepladder.training.setup.build import make_model


def ready(folder: Path, *, epochs: int, task: SoundPictures | None = None) -> CheckedJob:
    """Return a job with its model, as `train` has it before its first step."""
    recipe = replace(
        sound_recipe(),
        schedule=ScheduleConfig(max_epochs=epochs),
        stopping=StoppingConfig(early=False),
    )
    example = Example(task=task or SoundPictures(), recipe=recipe)
    job = open_job(example.config(folder), example.task, task_name="example")
    job.given = make_model(job.recipe, job.task, job.device)
    return job


def no_key() -> str:
    return "key"


def test_the_prediction_grows_with_the_epochs(tmp_path: Path) -> None:
    short, long = (predicted_s(ready(tmp_path, epochs=epochs)) for epochs in (1, 100_000))
    assert 0 < short < long


def test_early_stopping_and_cached_features_shorten_it() -> None:
    recipe = Recipe(schedule=ScheduleConfig(max_epochs=500))
    assert expected_epochs(recipe) == 4 * recipe.stopping.patience
    whole = replace(recipe, stopping=replace(recipe.stopping, early=False))
    assert expected_epochs(whole) == 500
    cached = replace(whole, features=replace(whole.features, cached=True))
    assert expected_epochs(cached) == 1


def test_a_short_run_is_not_checked_and_a_long_one_is(tmp_path: Path) -> None:
    short = check_before_training(ready(tmp_path, epochs=1), key=no_key, folder=tmp_path)
    assert short == "the training is too short for them"
    long = check_before_training(ready(tmp_path, epochs=100_000), key=no_key, folder=tmp_path)
    assert not isinstance(long, str)
    assert long.tier == "fast"
    assert long.limit_s is not None
    assert long.limit_s <= 10
    assert "overfit_one_batch" not in {finding.check for finding in long.findings}


def test_a_training_too_short_for_its_checks_is_the_reason_why_nothing_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "predicted_s", lambda job: 4.0)  # a twentieth is 0.2 s
    times = iter((0.0, 0.15))
    monkeypatch.setattr(preflight.time, "perf_counter", lambda: next(times))
    found = check_before_training(ready(tmp_path, epochs=1), key=no_key, folder=tmp_path)
    assert isinstance(found, str)
    assert found.startswith("the training is short")


def test_an_example_that_can_be_read_once_is_not_read_for_checks(tmp_path: Path) -> None:
    class Endless(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            raise AssertionError("an example was read")

        def __len__(self) -> int:
            return 8

    job = ready(tmp_path, epochs=1)
    job.sources = replace(job.sources, train=as_source(Endless()))
    found = check_before_training(job, key=no_key, folder=tmp_path)
    assert isinstance(found, str)
    assert "IterableDataset" in found


def test_what_was_found_before_is_not_checked_again(tmp_path: Path) -> None:
    job = ready(tmp_path, epochs=100_000)
    first = check_before_training(job, key=no_key, folder=tmp_path)
    assert not isinstance(first, str)
    write_checks(tmp_path, first)
    assert check_before_training(job, key=no_key, folder=tmp_path) == first
    other = check_before_training(job, key=lambda: "other", folder=tmp_path)
    assert not isinstance(other, str)
    assert other.key == "other"


def test_a_loss_that_fails_is_checked_nevertheless(tmp_path: Path) -> None:
    class Fails(SoundPictures):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            raise RuntimeError("shapes")

    report = check_before_training(
        ready(tmp_path, epochs=1, task=Fails()), key=no_key, folder=tmp_path
    )
    assert not isinstance(report, str)
    assert {"passed", "could_not_run"} <= {finding.outcome.value for finding in report.findings}


def test_the_model_of_the_training_is_unchanged(tmp_path: Path) -> None:
    job = ready(tmp_path, epochs=100_000)
    assert job.given is not None
    before = {name: tensor.clone() for name, tensor in job.given.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    check_before_training(job, key=no_key, folder=tmp_path)
    for name, tensor in job.given.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert torch.equal(torch.get_rng_state(), state)
    assert job.given.training


@pytest.mark.parametrize("name", ["given", "model"])
def test_a_users_model_shares_no_weight(name: str, tmp_path: Path) -> None:
    job = ready(tmp_path, epochs=1)
    assert job.given is not None
    own = job.model()
    other = job.given if name == "given" else job.model()
    places = {weight.data_ptr() for weight in other.parameters()}
    assert places.isdisjoint(weight.data_ptr() for weight in own.parameters())

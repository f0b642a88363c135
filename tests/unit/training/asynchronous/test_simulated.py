"""Simulated workers: equal to synchronous training where they must be, and to themselves."""

from __future__ import annotations

import fcntl
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

import stepladder
from stepladder.config.choices import (
    AgeRule,
    AsyncMethod,
    Checks,
    DeviceChoice,
    OptimizerName,
    Precision,
    TrainMode,
    WorkerData,
)
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    AsynchronousConfig,
    AugmentConfig,
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.errors import DivergedError, UsageError
from stepladder.parallel.world import ALONE
from stepladder.task.load import load_task
from stepladder.training.asynchronous.attach import require_workers
from stepladder.training.setup.build import open_sources
from tests.ranks.together import TASKS

RECIPE = Recipe(
    train=TrainMode.ALL,
    batch=BatchConfig(global_batch_size=8, lr=0.05),
    optimizer=OptimizerConfig(name=OptimizerName.SGD),
    schedule=ScheduleConfig(max_epochs=3),
    stopping=StoppingConfig(early=False, restore_best=False),
    device=DeviceConfig(kind=DeviceChoice.CPU, threads=1),
)
SERVER = AsyncMethod.PARAMETER_SERVER
LOCAL_ALONE = {"method": AsyncMethod.LOCAL_SGD, "workers": 1, "local_steps": 2}
METHODS = [one for one in AsyncMethod if one not in (AsyncMethod.OFF, AsyncMethod.HOGWILD)]


def workers(recipe: Recipe = RECIPE, **options: Any) -> Recipe:
    """Return the recipe with three simulated workers."""
    chosen = {"method": SERVER, "workers": 3, "simulate": True, **options}
    return replace(recipe, asynchronous=AsynchronousConfig(**chosen))


def train(recipe: Recipe, folder: Path, task: str = "Plain") -> dict[str, Any]:
    """Train, and return the weights, the losses of the log, and what the workers did."""
    run = RunConfig(dir=folder, checks=Checks.OFF, log_every=1)
    stepladder.train(config=JobConfig(recipe=recipe, run=run), task=f"{TASKS}:{task}")
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    last = max((folder / "checkpoints").glob("step-*"))
    return {
        "weights": load_file(last / "model.safetensors"),
        "losses": [one["train_loss"] for one in events if one["event"] == "train"],
        "validations": [one["val_loss"] for one in events if one["event"] == "validation"],
        "workers": [one for one in events if one["event"] == "workers"],
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A training of one process."""
    return train(RECIPE, tmp_path_factory.mktemp("alone") / "run")


def test_with_a_bound_of_0_it_is_synchronous_training(
    tmp_path: Path, alone: dict[str, Any]
) -> None:
    """Also in the last batch of an epoch, of which some workers have less."""
    found = train(workers(max_age=0), tmp_path / "run")
    np.testing.assert_allclose(found["losses"], alone["losses"], rtol=1e-5)
    np.testing.assert_allclose(found["validations"], alone["validations"], rtol=1e-5)
    for name, array in found["weights"].items():
        np.testing.assert_allclose(array, alone["weights"][name], rtol=1e-4, atol=1e-6)
    assert {one["max_gradient_age"] for one in found["workers"]} == {0}
    assert {one["updates"] for one in found["workers"]} == {1}


@pytest.mark.parametrize("method", METHODS)
def test_a_simulation_is_repeated_to_the_bit(method: AsyncMethod, tmp_path: Path) -> None:
    recipe = workers(method=method, stragglers=3.0, local_steps=2)
    one, other = (train(recipe, tmp_path / name) for name in ("one", "other"))
    assert one["losses"] == other["losses"]
    times = [[event["simulated_s"] for event in found["workers"]] for found in (one, other)]
    assert times[0] == times[1]
    for name, array in one["weights"].items():
        np.testing.assert_array_equal(array, other["weights"][name])
    assert one["validations"][-1] < one["validations"][0]


def test_ages_are_logged_and_stay_within_their_bound(tmp_path: Path) -> None:
    free = train(workers(stragglers=6.0), tmp_path / "free")["workers"]
    bound = train(workers(stragglers=6.0, max_age=3), tmp_path / "bound")["workers"]
    assert max(one["max_gradient_age"] for one in free) > 3
    assert max(one["max_gradient_age"] for one in bound) == 3
    slow = [sum(one["examples_by_worker"][2] for one in found) for found in (free, bound)]
    assert slow[0] < slow[1]


def test_a_slow_worker_is_waited_for_by_synchronous_training_alone(tmp_path: Path) -> None:
    def time(**options: Any) -> float:
        found = train(workers(stragglers=4.0, **options), tmp_path / str(options))["workers"]
        return float(found[-1]["simulated_s"])

    synchronous = time(max_age=0)
    assert time() < 0.6 * synchronous
    assert time(method=AsyncMethod.BACKUP_WORKERS) < 0.6 * synchronous


def test_one_worker_alone_trains_as_one_process(tmp_path: Path, alone: dict[str, Any]) -> None:
    """Local steps, averaged over one worker, are the steps themselves."""
    local = workers(method=AsyncMethod.LOCAL_SGD, workers=1, local_steps=2)
    for name, recipe in {"server": workers(workers=1), "local": local}.items():
        found = train(recipe, tmp_path / name)
        np.testing.assert_allclose(found["validations"], alone["validations"], rtol=1e-4)


def test_each_worker_reads_its_part_or_all_examples(tmp_path: Path) -> None:
    parts = train(workers(max_age=0), tmp_path / "shard")["workers"]
    assert sum(sum(one["examples_by_worker"]) for one in parts) == 3 * 37
    whole = train(workers(data=WorkerData.ALL), tmp_path / "all")
    assert whole["validations"][-1] < whole["validations"][0]


def test_old_gradients_move_the_weights_less(tmp_path: Path) -> None:
    shrunk, plain = (
        train(workers(age_rule=rule), tmp_path / rule)["weights"]
        for rule in (AgeRule.INVERSE, AgeRule.NONE)
    )
    start = train(
        replace(workers(), schedule=ScheduleConfig(max_steps=1), batch=BatchConfig(lr=1e-12)),
        tmp_path / "start",
    )["weights"]

    def moved(weights: dict[str, np.ndarray]) -> float:
        return float(sum(((weights[name] - start[name]) ** 2).sum() for name in start))

    assert moved(shrunk) < moved(plain)


def test_running_statistics_reach_the_model(tmp_path: Path) -> None:
    found = train(workers(max_age=0), tmp_path / "run", task="WithNorm")["weights"]
    counts = [array for name, array in found.items() if name.endswith("num_batches_tracked")]
    assert [int(count) for count in counts] == [15]
    means = [array for name, array in found.items() if name.endswith("running_mean")]
    assert all(np.abs(mean).max() > 0 for mean in means)


@pytest.mark.parametrize("task", ["WithIdle", "Tied", "Masked"])
def test_with_a_bound_of_0_unused_tied_and_constant_tensors_are_as_in_one_process(
    task: str, tmp_path: Path
) -> None:
    """Weights without a gradient are not decayed, tied ones count once, masks stay infinite."""
    adamw = OptimizerConfig(name=OptimizerName.ADAMW, weight_decay=0.1)
    recipe = replace(RECIPE, optimizer=adamw, batch=BatchConfig(global_batch_size=8, lr=0.01))
    alone = train(recipe, tmp_path / "alone", task=task)
    for name, method in {"server": {"max_age": 0}, "local": LOCAL_ALONE}.items():
        found = train(workers(recipe, **method), tmp_path / name, task=task)
        np.testing.assert_allclose(found["validations"], alone["validations"], rtol=1e-4)
        for key, array in found["weights"].items():
            expected = alone["weights"][key]
            np.testing.assert_allclose(array, expected, rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_not_finite_ends_the_run(method: AsyncMethod, tmp_path: Path) -> None:
    """Although the loss is."""
    with pytest.raises(DivergedError, match="became NaN or infinite"):
        train(workers(method=method), tmp_path / "run", task="NanGradient")


@pytest.mark.thorough
def test_statistics_of_many_workers_stay_bounded(tmp_path: Path) -> None:
    many = replace(
        workers(workers=24),
        batch=BatchConfig(global_batch_size=48, lr=1e-9),
        schedule=ScheduleConfig(max_epochs=40),
    )
    found = train(many, tmp_path / "run", task="WithNorm")
    variances = [a for name, a in found["weights"].items() if name.endswith("running_var")]
    assert all((array > 0).all() and array.max() < 2 for array in variances)


def test_a_dry_run_ends_what_it_started_and_removes_what_a_killed_run_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "stepladder.training.asynchronous.process_crew"
    run = RunConfig(dir=tmp_path / "run", checks=Checks.OFF)
    config = JobConfig(recipe=workers(workers=2, simulate=False), run=run)
    with tempfile.TemporaryDirectory() as name:  # a short path, for the socket
        memory = Path(name)
        monkeypatch.setattr(f"{module}._SHARED_MEMORY", memory)
        left, used = (memory / f"stepladder-workers-{one}" for one in ("left", "used"))
        for folder in (left, used):
            folder.mkdir()
            (folder / "lock").touch()
        with (used / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stepladder.train(config=config, task=f"{TASKS}:Plain", dry_run=True)
            assert list(memory.iterdir()) == [used]
    children = psutil.Process().children(recursive=True)
    alive = [one for one in children if one.status() != psutil.STATUS_ZOMBIE]
    names = [child.cmdline() for child in alive]
    assert not any("stepladder.training.asynchronous.worker" in one for one in names)


def test_a_climb_of_workers_is_refused(tmp_path: Path) -> None:
    config = JobConfig(recipe=workers(), run=RunConfig(dir=tmp_path / "run", checks=Checks.OFF))
    with pytest.raises(UsageError, match="asynchronous workers"):
        stepladder.climb(config=config, task=f"{TASKS}:Plain")


def test_a_run_resumes_where_it_was(tmp_path: Path) -> None:
    whole = train(workers(max_age=0), tmp_path / "whole")
    short = replace(workers(max_age=0), schedule=ScheduleConfig(max_epochs=2))
    train(short, tmp_path / "run")
    resumed = train(workers(max_age=0), tmp_path / "run")
    np.testing.assert_allclose(resumed["validations"], whole["validations"], rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"device": DeviceConfig(count=2, kind=DeviceChoice.CPU)}, "--asynchronous.workers 2"),
        ({"train": TrainMode.HEAD_THEN_ALL}, "has two"),
        ({"device": DeviceConfig(precision=Precision.FP16_MASTER)}, "loss scale"),
        ({"features": FeaturesConfig(cached=True), "train": TrainMode.HEAD}, "cached features"),
        ({"augment": AugmentConfig(mixup_alpha=0.2)}, "MixUp"),
        ({"batch": BatchConfig(global_batch_size=2)}, "--asynchronous.workers 2 or fewer"),
    ],
    ids=lambda one: one if isinstance(one, str) else next(iter(one)),
)
def test_what_workers_cannot_train_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    recipe = replace(workers(), **change)
    task = load_task(f"{TASKS}:Plain", store=tmp_path)
    with pytest.raises(UsageError) as error:
        require_workers(recipe, task, open_sources(task), ALONE)
    assert said in str(error.value)


def test_options_without_effect_are_named(tmp_path: Path, capsys: Any) -> None:
    off = AsynchronousConfig(workers=2, local_steps=3)
    train(replace(RECIPE, asynchronous=off, schedule=ScheduleConfig(max_steps=2)), tmp_path / "1")
    said = "asynchronous.workers, asynchronous.local_steps have no effect"
    assert f"{said} with asynchronous.method off" in capsys.readouterr().err
    one = replace(workers(num_backup=2), schedule=ScheduleConfig(max_steps=2))
    train(one, tmp_path / "2")
    said = "asynchronous.num_backup has no effect with asynchronous.method parameter_server"
    assert said in capsys.readouterr().err


def test_shared_memory_is_not_simulated(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be simulated"):
        train(workers(method=AsyncMethod.HOGWILD), tmp_path / "run")

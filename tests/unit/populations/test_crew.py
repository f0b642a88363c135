"""Processes that train slices: the same population, and none of them is left."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stepladder.config.choices import PopulationEngine
from stepladder.config.options import JobConfig, PopulationConfig, RunConfig
from stepladder.errors import ResourceError, UsageError
from stepladder.populations import crew as module
from stepladder.populations.run import train_population
from stepladder.records.population import PopulationSummary
from stepladder.task.load import load_task
from stepladder.training.output.display import Display
from tests.unit.populations.conftest import RECIPE, same

TASK = f"{Path(__file__).with_name('conftest.py')}:Blobs"
Train = Callable[..., PopulationSummary]


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    left = [one for one in psutil.Process().children(recursive=True) if one not in before]
    for one in left:
        one.kill()
    assert not left


@pytest.fixture(name="train")
def _train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    root = Path(__file__).parents[3]
    paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    def train(name: str, *, workers: int, task_name: str = TASK) -> PopulationSummary:
        job = JobConfig(
            recipe=replace(RECIPE, device=replace(RECIPE.device, threads=1)),
            run=RunConfig(dir=tmp_path / name),
            population=PopulationConfig(
                members=4,
                top_frac=0.25,
                genes="batch.lr 1e-3..1e-1 log",
                engine=PopulationEngine.SLICES,
                workers=workers,
            ),
        )
        task = load_task(TASK, store=job.recipe.data.store)
        return train_population(job, task, task_name=task_name, display=Display(io.StringIO()))

    return train


def test_two_processes_train_the_same_population(train: Train, tmp_path: Path) -> None:
    assert same(train("two", workers=2), train("one", workers=1))


def test_a_process_that_dies_is_named_and_the_population_resumes(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    original = module._Worker.train
    left = [5]

    def dying(self, order):
        left[0] -= 1
        if left[0] == 0:
            os.kill(self._process.pid, signal.SIGKILL)
        return original(self, order)

    with monkeypatch.context() as patch:
        patch.setattr(module._Worker, "train", dying)
        with pytest.raises(ResourceError) as caught:
            train("cut", workers=2)
    assert "worker" in str(caught.value.where)
    assert "worker-" in str(caught.value.why)
    assert same(train("cut", workers=2), train("whole", workers=1))


def test_an_error_of_a_process_is_that_of_the_command(train: Train, tmp_path: Path) -> None:
    missing = f"{tmp_path / 'gone.py'}:Blobs"
    with pytest.raises(ResourceError, match=r"gone\.py"):
        train("run", workers=2, task_name=missing)


def test_a_task_without_a_file_cannot_be_loaded_elsewhere(train: Train) -> None:
    with pytest.raises(UsageError, match="has no file"):
        train("run", workers=2, task_name="__main__:Blobs")


def test_a_process_ends_when_its_input_does(tmp_path: Path, train: Train) -> None:
    train("run", workers=1)
    spec = module.CrewSpec(
        num=1,
        config=tmp_path / "run" / "config.yaml",
        task=TASK,
        folder=tmp_path / "run" / "slices",
    )
    worker = module._Worker(spec, 0)
    try:
        assert worker.receive() == {"ready": True}
        worker._process.stdin.close()  # as when the process that has started it is gone
        assert worker._process.wait(30) == 0
    finally:
        worker.close()


def test_workers_use_the_gpus_that_this_process_may_use() -> None:
    assert [module.gpu_of(idx, 2, {}) for idx in range(3)] == ["0", "1", "0"]
    named = {"CUDA_VISIBLE_DEVICES": "2, GPU-8f3a"}
    assert [module.gpu_of(idx, 2, named) for idx in range(3)] == ["2", "GPU-8f3a", "2"]

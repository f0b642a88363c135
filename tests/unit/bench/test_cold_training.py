from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepladder.config.choices import TrainMode
from stepladder.config.options import JobConfig
from stepladder.config.recipe import DataConfig, Recipe, ScheduleConfig
from stepladder.data.store.pixel_copy import copies_folder
from stepladder.task.image_classification import ImageClassification
from stepladder.training.features.feature_cache import features_folder

Import = Callable[[str], ModuleType]

SETUP_S = 0.3
TASK = f"""
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from stepladder import Task

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


class Watched(Task):
    def build_model(self, recipe):
        seen = {{"pid": os.getpid(), "num_cores": len(os.sched_getaffinity(0))}}
        seen["caches"] = [
            sorted(path.name for path in Path(os.environ[name]).rglob("*")) for name in CACHES
        ]
        Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
        time.sleep({SETUP_S})
        return nn.Linear(1, 1)

    def data(self, split):
        x = torch.linspace(-1, 1, 8)[:, None]
        return TensorDataset(x, 2 * x)

    def loss(self, model, batch):
        return (model(batch.inputs) - batch.targets).square().squeeze(1)
"""


def test_a_cold_training_is_timed_whole_but_for_the_last_evaluation(
    module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = tmp_path / "warm"
    warm.mkdir()
    (warm / "compiled").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(warm))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(warm))
    (tmp_path / "task.py").write_text(TASK)
    recipe = Recipe(train=TrainMode.ALL, schedule=ScheduleConfig(max_epochs=1))
    job = JobConfig(recipe=recipe)
    job = replace(job, run=replace(job.run, dir=tmp_path / "run"))
    trained = module("cold_training").train_cold(
        job, task=f"{tmp_path / 'task.py'}:Watched", store=None, num_cores=1
    )
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["pid"] != os.getpid()
    assert seen["num_cores"] == 1
    assert seen["caches"] == [[], []]
    evaluated_s = trained["phases_s"]["test"]
    assert evaluated_s > 0
    assert trained["seconds"] == pytest.approx(trained["wall_s"] - evaluated_s)
    # setup lies within it, which train_s leaves out
    assert trained["seconds"] - trained["train_s"] >= SETUP_S
    assert trained["epochs"] == 1


def test_only_what_stepladder_writes_beside_a_store_is_removed(
    module: Import, build_store: Callable[..., Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    build_store(store)
    job = JobConfig(recipe=Recipe(data=DataConfig(store=store)))
    left = (features_folder(job, ImageClassification(store)), copies_folder(store))
    others = [store.with_name(name) for name in ("store.backup", "store.old", "other.features")]
    for folder in (*left, *others):
        (folder / "key").mkdir(parents=True)
    module("workloads").forget_artefacts(store)
    assert [folder.exists() for folder in left] == [False, False]
    assert all((folder / "key").exists() for folder in others)
    assert (store / "manifest.json").exists()


def test_a_job_without_a_store_loses_nothing(
    module: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(f"{Recipe().data.store}.features")
    folder.mkdir()
    module("workloads").forget_artefacts(None)
    assert folder.exists()


def test_published_epochs_are_extrapolated_from_those_that_were_trained(module: Import) -> None:
    gpu_climb = module("gpu_climb")
    assert gpu_climb.PUBLISHED_EPOCHS == 12
    training = {"seconds": 30.0, "train_s": 20.0, "epochs": 2}
    assert gpu_climb.extrapolated_s(training) == pytest.approx(10 + 12 * 10)

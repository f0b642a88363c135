"""Features computed by Spark are those of a run, and are where a run expects them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import stepladder
from stepladder.config.choices import EngineName, Precision, Split, WeightsSource
from stepladder.config.options import JobConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    ModelConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.data.spark import site
from stepladder.errors import UsageError
from stepladder.models.trunk import build_trunk
from stepladder.records import read_json
from stepladder.training.features import spark as features_spark
from stepladder.training.features.feature_rules import agree

NUM_ROWS = {"train": 70, "val": 20, "test": 5}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts with few rows."""
    monkeypatch.setattr(features_spark, "_ROWS_PER_TASK", 32)


@pytest.fixture
def recipe(tmp_path: Path, build_store: Any) -> Recipe:
    build_store(tmp_path / "store", num_rows=NUM_ROWS, size=32)
    model = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    save_file(build_trunk(model).model.state_dict(), tmp_path / "trunk.safetensors")
    return Recipe(
        model=replace(model, weights=tmp_path / "trunk.safetensors"),
        data=DataConfig(store=tmp_path / "store"),
        device=DeviceConfig(kind="cpu"),  # type: ignore[arg-type]
        batch=BatchConfig(global_batch_size=8),
        schedule=ScheduleConfig(max_epochs=1),
        features=FeaturesConfig(cached=True),
    )


def computed(folder: Path) -> dict[str, Path]:
    """Return the feature folders by split."""
    return {read_json(path)["split"]: path.parent for path in folder.glob("*/manifest.json")}


def test_they_are_those_of_a_run_and_a_run_computes_nothing_more(
    spark: Any, recipe: Recipe, tmp_path: Path
) -> None:
    made = stepladder.features(recipe, engine=EngineName.SPARK)
    assert made.num_rows == NUM_ROWS
    by_spark = computed(made.folder)
    assert set(by_spark) == set(Split)
    assert sorted(path.name for path in by_spark["train"].iterdir()) == [
        "features.npy",
        "manifest.json",
        "targets.npy",
    ]
    before = {split: (folder / "manifest.json").read_bytes() for split, folder in by_spark.items()}
    run = stepladder.train(recipe, dir=tmp_path / "run", **{"run.checks": "off"})
    assert run.summary["status"] == "finished"
    after = computed(made.folder)
    assert {split: (after[split] / "manifest.json").read_bytes() for split in after} == before
    made.folder.rename(tmp_path / "by_spark")
    local = computed(stepladder.features(recipe).folder)
    assert {path.name for path in local.values()} == {path.name for path in by_spark.values()}
    for split, folder in local.items():
        other = tmp_path / "by_spark" / by_spark[split].name
        a, b = (torch.from_numpy(np.load(at / "features.npy")) for at in (folder, other))
        assert agree(a, b, Precision.FP32)
        assert (folder / "targets.npy").read_bytes() == (other / "targets.npy").read_bytes()


def test_interrupted_it_resumes_with_the_parts_that_are_there(
    spark: Any, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies after the first part; what tasks wrote is not computed again."""
    look = features_spark._Parts.look

    def die(parts: Any) -> None:
        if list((parts._site.root / "parts").glob("*.safetensors")):
            raise KeyboardInterrupt
        look(parts)

    with monkeypatch.context() as patched:
        patched.setattr(features_spark._Parts, "look", die)
        with pytest.raises(KeyboardInterrupt):
            stepladder.features(recipe, engine=EngineName.SPARK)
    folder = recipe.data.store.with_name("store.features")
    left = {path.name for path in folder.glob("*.partial/spark/parts/*.safetensors")}
    assert left
    sent: list[int] = []
    run_told = site.run_told

    def counted(session: Any, place: Any, num_tasks: int, *args: Any, **options: Any) -> Any:
        sent.append(num_tasks)
        return run_told(session, place, num_tasks, *args, **options)

    monkeypatch.setattr(features_spark, "run_told", counted)
    made = stepladder.features(recipe, engine=EngineName.SPARK)
    assert sent[0] <= 3 - len(left)  # a cancelled task may still have finished
    assert sent[1:] == [1, 1]
    assert set(computed(made.folder)) == set(Split)
    assert not list(folder.glob("*.partial"))


def test_a_task_that_executors_cannot_open_is_refused(recipe: Recipe) -> None:
    class Local(stepladder.ImageClassification):
        pass

    task = Local(recipe.data.store, recipe)
    Local.__module__ = "nowhere"
    with pytest.raises(UsageError, match="cannot load the Task") as caught:
        stepladder.features(recipe, task=task, engine=EngineName.SPARK)
    assert "FILE.py" in str(caught.value)
    assert JobConfig(recipe=recipe)

"""`auto` chooses what changes nothing but rounding, once, and says so; a user's own choice wins."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder.config.choices import MemoryFormat, OptimizerName, Split, TrainMode, WeightsSource
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    FeaturesConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.data.batch import Batch
from stepladder.data.reading import threads
from stepladder.records import read_json
from stepladder.task import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.output.display import PlainDisplay
from stepladder.training.run import train
from stepladder.training.setup import automatic, build

SMALL = Recipe(
    model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
    batch=BatchConfig(global_batch_size=8, lr=0.01),
    schedule=ScheduleConfig(max_epochs=3),
)
OFF = replace(SMALL, auto=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Path:
    folder = tmp_path_factory.mktemp("automatic") / "store"
    build_store(folder, num_rows={"train": 24, "val": 8, "test": 8}, size=32)
    return folder


class Line(Task):
    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self, split: Split) -> TensorDataset:
        x = torch.linspace(0, 1, 16)[:, None]
        return TensorDataset(x, 3 * x + 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square().squeeze(1)


def run(recipe: Recipe, store: Path, folder: Path, task: Task | None = None) -> tuple[Recipe, str]:
    """Train, and return the recipe that the run's folder holds and what was printed."""
    recipe = replace(recipe, data=replace(recipe.data, store=store))
    job = JobConfig(recipe=recipe, run=RunConfig(dir=folder, system_every_s=60))
    shown = io.StringIO()
    used = task or ImageClassification(store, recipe)
    train(job, used, task_name="image_classification", display=PlainDisplay(shown))
    return load_job(folder / "config.yaml").recipe, shown.getvalue()


def validations(folder: Path) -> list[float]:
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event["val_loss"] for event in events if "val_loss" in event]


def chosen(recipe: Recipe) -> tuple[object, object, object]:
    return recipe.features.cached, recipe.optimizer.fused, recipe.device.memory_format


def test_what_is_exact_is_chosen_once_written_and_said(store: Path, tmp_path: Path) -> None:
    recipe, shown = run(SMALL, store, tmp_path / "run")
    assert chosen(recipe) == (True, True, MemoryFormat.CHANNELS_LAST)
    assert "using cached features (the trunk is frozen" in shown
    assert "--no-auto" in shown


def of_machine(recipe: Recipe) -> tuple[object, object]:
    return recipe.loader.threads, recipe.device.keep_freed_memory


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Has an item for each time that malloc was configured."""
    calls: list[bool] = []
    monkeypatch.setattr(build, "keep_freed_memory", lambda: calls.append(True) or True)
    return calls


def test_threads_and_memory_are_part_of_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[bool]
) -> None:
    monkeypatch.setattr(threads, "num_cores", lambda: 3)
    recipe, shown = run(SMALL, store, tmp_path / "run")
    assert of_machine(recipe) == (0, True)
    assert "3 reading threads and an allocator that keeps freed memory; --no-auto" in shown
    assert kept


def test_the_switch_turns_threads_and_memory_off(
    store: Path, tmp_path: Path, kept: list[bool]
) -> None:
    recipe, shown = run(OFF, store, tmp_path / "off")
    assert of_machine(recipe) == (1, False)
    assert "using" not in shown
    assert not kept
    named = replace(
        OFF,
        loader=LoaderConfig(threads=0),
        device=replace(OFF.device, keep_freed_memory=True),
    )
    recipe, shown = run(named, store, tmp_path / "named")
    assert of_machine(recipe) == (0, True)
    assert "using" not in shown
    assert kept


def test_a_dataset_keeps_its_own_thread(store: Path, tmp_path: Path) -> None:
    """It may not be thread-safe: a number in the recipe would mean that the user knows it is."""
    recipe, _ = run(OFF, store, tmp_path / "run", task=Line())
    assert recipe.loader.threads == 0


def test_what_is_the_plain_default_is_not_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One core has one reading thread, a Dataset too; the user's malloc is left alone."""
    monkeypatch.setattr(build, "keep_freed_memory", lambda: False)
    monkeypatch.setattr(threads, "num_cores", lambda: 1)
    _, shown = run(SMALL, store, tmp_path / "pictures")
    assert "the channels-last layout and the fused optimizer; " in shown
    monkeypatch.setattr(threads, "num_cores", lambda: 8)
    _, shown = run(SMALL, store, tmp_path / "task", task=Line())
    assert "using the fused optimizer; " in shown


def test_it_changes_nothing_but_rounding(store: Path, tmp_path: Path) -> None:
    run(SMALL, store, tmp_path / "auto")
    recipe, shown = run(OFF, store, tmp_path / "off")
    assert chosen(recipe) == (False, False, MemoryFormat.CONTIGUOUS)
    assert "using" not in shown
    ours, theirs = validations(tmp_path / "auto"), validations(tmp_path / "off")
    assert len(ours) >= 3
    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"augment": AugmentConfig(flip=True)},
        {"train": TrainMode.ALL},
        {"features": FeaturesConfig(cached_views=2)},
    ],
    ids=["random before the head", "the trunk is trained", "views are other examples"],
)
def test_features_that_would_change_what_is_learnt_are_not_cached(
    store: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    recipe, shown = run(replace(SMALL, **changes), store, tmp_path / "run")
    assert recipe.features.cached is False
    assert "cached features" not in shown


def test_a_users_own_choice_wins(store: Path, tmp_path: Path) -> None:
    own = replace(
        SMALL,
        features=FeaturesConfig(cached=False),
        optimizer=OptimizerConfig(fused=False),
        loader=LoaderConfig(threads=1),
        device=replace(
            SMALL.device, memory_format=MemoryFormat.CONTIGUOUS, keep_freed_memory=False
        ),
    )
    recipe, shown = run(own, store, tmp_path / "run")
    assert chosen(recipe) == (False, False, MemoryFormat.CONTIGUOUS)
    assert "using" not in shown
    recipe, _ = run(replace(OFF, features=FeaturesConfig(cached=True)), store, tmp_path / "on")
    assert chosen(recipe) == (True, False, MemoryFormat.CONTIGUOUS)


def test_a_run_goes_on_as_it_began(store: Path, tmp_path: Path) -> None:
    run(OFF, store, tmp_path / "run")
    longer = replace(SMALL, schedule=ScheduleConfig(max_epochs=4))
    recipe, _ = run(longer, store, tmp_path / "run")
    assert chosen(recipe) == (False, False, MemoryFormat.CONTIGUOUS)
    assert of_machine(recipe) == (1, False)


def test_features_that_would_fill_the_disk_are_not_cached(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "disk_free_bytes", lambda folder: 100)
    recipe, shown = run(SMALL, store, tmp_path / "run")
    assert recipe.features.cached is False
    assert "not using cached features: they need" in shown
    assert "--features.cached uses them nevertheless" in shown


def test_only_the_rows_of_a_sample_count_as_features(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of test_efficientnet have 256 numbers: 12 + 8 + 8 rows of 1,024 bytes."""
    half = replace(SMALL, data=replace(SMALL.data, fraction=0.5))
    for free, is_cached in ((2 * 28 * 1024, True), (2 * 28 * 1024 - 1, False)):
        monkeypatch.setattr(automatic, "disk_free_bytes", lambda folder, free=free: free)
        assert run(half, store, tmp_path / str(free))[0].features.cached is is_cached


def test_validations_and_the_stop_are_those_of_an_uncached_run(store: Path, tmp_path: Path) -> None:
    """A rate this high overfits 24 pictures, so that early stopping ends both runs."""
    long = replace(
        SMALL,
        batch=BatchConfig(global_batch_size=8, lr=0.1),
        schedule=ScheduleConfig(max_epochs=40),
    )
    run(long, store, tmp_path / "auto")
    run(replace(long, auto=False), store, tmp_path / "off")
    ours, theirs = (read_json(tmp_path / name / "summary.json") for name in ("auto", "off"))
    assert ours["stop_reason"] == theirs["stop_reason"] == "early_stopping"
    assert ours["epochs"] == theirs["epochs"] < 40
    assert ours["best_step"] == theirs["best_step"]
    assert validations(tmp_path / "auto") == pytest.approx(validations(tmp_path / "off"), rel=1e-3)


class Pictures(Task):
    """12 x 12 pictures; a subclass has the model."""

    is_random_before_head = False

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(len(split))
        inputs = torch.randn(16, 3, 12, 12, generator=generator)
        return TensorDataset(inputs, torch.arange(16) % 3)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class InDepth(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x[:, None]).flatten(1)


class ViewedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.view(-1).view(grad.shape)


class BackwardViewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(ViewedGradient.apply(x)).flatten(1)


class InMemoryOrder(nn.Module):
    """Does not fail in another layout: its result is another one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_strided(x, (len(x), 400), (400, 1))


@pytest.mark.parametrize("layer", [InDepth, BackwardViewed, InMemoryOrder])
def test_a_model_that_channels_last_breaks_trains_without_it(
    store: Path, tmp_path: Path, layer: type[nn.Module]
) -> None:
    class Own(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(nn.Conv2d(3, 4, 3), layer(), nn.Linear(400, 3))

    own = replace(SMALL, train=TrainMode.ALL)
    recipe, shown = run(own, store, tmp_path / "auto", task=Own())
    assert recipe.device.memory_format is MemoryFormat.CONTIGUOUS
    assert "not using the channels-last layout: the " in shown
    run(replace(own, auto=False), store, tmp_path / "off", task=Own())
    ours, theirs = validations(tmp_path / "auto"), validations(tmp_path / "off")
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_trunk_that_cannot_run_by_itself_trains_without_features(
    store: Path, tmp_path: Path
) -> None:
    class Own(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.Linear(8, 3))

        def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
            return model[1], model[2]

    recipe, shown = run(SMALL, store, tmp_path / "run", task=Own())
    assert recipe.features.cached is False
    assert "not using cached features: trunk and head fail separately (RuntimeError" in shown


def test_a_broken_task_fails_in_its_first_step_as_without_auto(store: Path, tmp_path: Path) -> None:
    class Own(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(7, 3))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        run(replace(SMALL, train=TrainMode.ALL), store, tmp_path / "run", task=Own())
    assert (tmp_path / "run" / "config.yaml").is_file()


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(432, 3, dtype=torch.complex64) / 20)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1).to(torch.complex64) @ self.weight).abs()


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_complex_weights_are_not_fused(store: Path, tmp_path: Path) -> None:
    class Own(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return Waves()

    own = replace(SMALL, train=TrainMode.ALL, optimizer=OptimizerConfig(name=OptimizerName.SGD))
    assert run(own, store, tmp_path / "run", task=Own())[0].optimizer.fused is False


def test_a_trial_draws_no_random_numbers_of_the_training(store: Path, tmp_path: Path) -> None:
    drawn: list[float] = []

    class Own(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(400, 3))

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            drawn.append(np.random.random())
            return super().loss(model, batch)

    lasts = []
    for recipe in (SMALL, OFF):
        drawn.clear()
        run(replace(recipe, train=TrainMode.ALL), store, tmp_path / str(recipe.auto), task=Own())
        lasts.append(drawn[-1])
    assert lasts[0] == lasts[1]


def test_a_task_without_a_trunk_trains_as_before(store: Path, tmp_path: Path) -> None:
    recipe, _ = run(SMALL, store, tmp_path / "run", task=Line())
    assert chosen(recipe) == (False, True, MemoryFormat.CONTIGUOUS)


class Viewed(Task):
    """A convolution whose output is flattened by `view`, which needs contiguous tensors."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Flat()

    def data(self, split: Split) -> TensorDataset:
        return TensorDataset(torch.rand(16, 3, 8, 8), torch.arange(16) % 2)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 8 * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(x.view(len(x), -1))


def test_a_model_that_fails_in_channels_last_stays_as_it_is(store: Path, tmp_path: Path) -> None:
    own = replace(SMALL, train=TrainMode.ALL)
    recipe, shown = run(own, store, tmp_path / "run", task=Viewed())
    assert chosen(recipe) == (False, True, MemoryFormat.CONTIGUOUS)
    assert "not using the channels-last layout: the model fails in it" in shown

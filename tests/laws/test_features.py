"""The head on cached features equals the whole model to rounding: logits, gradients, training."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.config.choices import (
    DeviceChoice,
    MemoryFormat,
    Precision,
    Split,
    WeightsSource,
    Where,
)
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    HeadConfig,
    ModelConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader
from stepladder.models.features import evaluating
from stepladder.records import read_json
from stepladder.task import Metrics, Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.features.feature_pass import num_views, read_batch
from stepladder.training.features.feature_task import FeatureTask, open_features
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.build import make_model, make_trunk_pass, open_sources
from stepladder.training.stage import enter_stage, stages_of
from stepladder.training.step import autocast

CPU = torch.device("cpu")
SIZE = 32


class Pictures(Dataset):
    """Random pictures as bytes or floats, in three classes."""

    def __init__(self, n: int, *, dtype: torch.dtype, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randint(0, 256, (n, 3, 16, 16), generator=generator)
        self.x = x.to(dtype)
        self.y = torch.randint(3, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        return self.x[idx], self.y[idx]


class Net(nn.Module):
    """A small network with BatchNorm and dropout on both sides of the split."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.top = nn.Sequential(nn.LayerNorm(12), nn.Dropout(0.2), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.body(x.float() / 255))


class Scaled(nn.Module):
    """Bytes scaled to [0, 1], then a network: preprocessing is part of the trunk."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.float() / 255)


class OwnTask(Task):
    """A user's task that uses only the contract."""

    dtype = torch.float32

    def build_model(self, recipe: Recipe) -> nn.Module:
        net = Net()
        return nn.Sequential(Scaled(net.body), net.top)

    def data(self, split: Split) -> Pictures:
        return Pictures(45, dtype=self.dtype, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        logits = model(batch.inputs).float()
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return losses, {"accuracy": (logits.argmax(1) == batch.targets).float().detach()}

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs).float()
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=logits)

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, nn.Sequential)
        return model[0], model[1:]

    @property
    def is_random_before_head(self) -> bool:
        return False


class OwnBytesTask(OwnTask):
    """The same with bytes."""

    dtype = torch.uint8


class RollingTask(OwnTask):
    """Pictures that are rolled differently in every epoch."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        return Batch(batch.inputs.roll(3 * epoch + seed, dims=-1), batch.targets, batch.ids)

    @property
    def is_random_before_head(self) -> bool:
        return True


def recipe_of(store: Path, **changes: Any) -> Recipe:
    recipe = Recipe(
        auto=False,
        data=DataConfig(store=store, where=Where.STREAM),
        model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
        features=FeaturesConfig(cached=True),
        head=HeadConfig(dropout=0.3),
        batch=BatchConfig(global_batch_size=8, lr=0.01),
        schedule=ScheduleConfig(max_epochs=4),
        device=DeviceConfig(kind=DeviceChoice.CPU, threads=1),
    )
    return replace(recipe, **changes)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Path:
    folder = tmp_path_factory.mktemp("pictures") / "store"
    build_store(folder, num_rows={"train": 45, "val": 20, "test": 7}, size=SIZE)
    return folder


def task_of(name: str, recipe: Recipe) -> Task:
    if name == "built-in":
        return ImageClassification(recipe.data.store, recipe)
    return OwnTask() if name == "own" else OwnBytesTask()


DEVICES = {
    "fp32": DeviceConfig(kind=DeviceChoice.CPU),
    "bf16": DeviceConfig(kind=DeviceChoice.CPU, precision=Precision.BF16),
    "channels_last": DeviceConfig(kind=DeviceChoice.CPU, memory_format=MemoryFormat.CHANNELS_LAST),
    "bf16 channels_last": DeviceConfig(
        kind=DeviceChoice.CPU,
        precision=Precision.BF16,
        memory_format=MemoryFormat.CHANNELS_LAST,
    ),
}


@pytest.mark.parametrize("is_folded", [False, True], ids=["plain", "folded"])
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("name", ["built-in", "own", "own bytes"])
def test_head_on_features_gives_the_logits_and_gradients_of_the_whole_model(
    name: str, device: DeviceConfig, is_folded: bool, store: Path, tmp_path: Path
) -> None:
    model_config = replace(recipe_of(store).model, fold_batchnorm=is_folded)
    recipe = recipe_of(store, device=device, model=model_config, head=HeadConfig(hidden=5))
    task = task_of(name, recipe)
    model = make_model(recipe, task, CPU)
    _settle_statistics(model, task)
    enter_stage(stages_of(recipe.train, recipe.batch)[0], task, model)
    model.eval()
    sources = open_sources(task)
    features = open_features(recipe, task, model, sources, folder=tmp_path, device=CPU)
    on_features = FeatureTask(task)
    rows = np.array([3, 44, 0, 17, 18])
    for split in ("train", "val", "test"):
        some = rows % len(getattr(sources, split))
        inputs = read_batch(getattr(features, split), some)
        examples = make_trunk_pass(recipe, task, model, device=CPU).on_device(
            read_batch(getattr(sources, split), some)
        )
        with autocast(CPU, device.precision):
            whole, apart = task.metrics(model, examples), on_features.metrics(model, inputs)
            wanted = _head_gradient(task, model, examples)
            found = _head_gradient(on_features, model, inputs)
        # the trunk's rounding depends on the batch size, visibly so in bf16
        tolerance = 3e-2 if device.precision is Precision.BF16 else 1e-4
        for a, b in [(apart.outputs, whole.outputs), *zip(found, wanted, strict=True)]:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance / 3)


def test_features_of_the_same_batches_are_equal_to_the_bit(store: Path, tmp_path: Path) -> None:
    recipe = recipe_of(store, device=DEVICES["bf16"])
    task = task_of("built-in", recipe)
    model = make_model(recipe, task, CPU)
    sources = open_sources(task)
    features = open_features(recipe, task, model, sources, folder=tmp_path, device=CPU)
    assert sources.val is not None
    assert features.val is not None
    rows = np.arange(len(sources.val))  # one batch of the pass
    trunk_pass = make_trunk_pass(recipe, task, model, device=CPU)
    with evaluating(model):
        fresh = trunk_pass.features(read_batch(sources.val, rows))
    kept = features.val.read(rows).inputs
    assert kept.dtype is fresh.dtype is torch.bfloat16
    assert torch.equal(kept, fresh)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("name", ["built-in", "own"])
def test_training_on_features_ends_as_training_on_pictures(
    name: str, precision: Precision, store: Path, tmp_path: Path
) -> None:
    device = replace(recipe_of(store).device, precision=precision)
    summaries = {}
    for is_cached in (False, True):
        recipe = recipe_of(store, features=FeaturesConfig(cached=is_cached), device=device)
        summaries[is_cached] = _train(recipe, task_of(name, recipe), tmp_path / str(is_cached))
    plain, cached = summaries[False], summaries[True]
    assert (plain["epochs"], plain["best_epoch"]) == (cached["epochs"], cached["best_epoch"])
    tolerance = 1e-4 if precision is Precision.FP32 else 2e-2
    for key in ("val_loss", "test_loss"):
        assert math.isclose(plain[key], cached[key], rel_tol=tolerance), key
    weights = {which: load_best(tmp_path / str(which)).weights for which in (False, True)}
    for key, weight in weights[False].items():
        torch.testing.assert_close(weights[True][key], weight, rtol=tolerance, atol=5 * tolerance)
    assert "features" in cached["phases_s"]
    assert "features" not in plain["phases_s"]


def test_each_view_is_what_training_would_see_in_that_epoch(store: Path, tmp_path: Path) -> None:
    recipe = recipe_of(
        store,
        augment=AugmentConfig(crop=0.5, flip=True),
        features=FeaturesConfig(cached=True, cached_views=3),
    )
    task = task_of("built-in", recipe)
    model = make_model(recipe, task, CPU)
    sources = open_sources(task)
    features = open_features(recipe, task, model, sources, folder=tmp_path, device=CPU)
    on_features = FeatureTask(task, num_views=num_views(recipe.features, task))
    reader = Reader(features.train, seed=0, global_batch_size=45)
    batch = next(reader.epoch(0))
    pictures = read_batch(sources.train, batch.ids.numpy())
    trunk, _ = task.split(model) or (None, None)
    assert trunk is not None
    for epoch in range(5):
        kept = on_features.augment(batch, seed=recipe.seed, epoch=epoch).inputs
        view = task.augment(pictures, seed=recipe.seed, epoch=epoch % 3)
        with evaluating(model):
            torch.testing.assert_close(kept, trunk(view.inputs), rtol=1e-4, atol=1e-5)


def test_training_on_views_sees_them_in_turn(store: Path, tmp_path: Path) -> None:
    ends = {}
    for views in (0, 4, 2):  # four epochs: with four views each epoch has its own, two are repeated
        recipe = recipe_of(
            store,
            features=FeaturesConfig(cached=views > 0, cached_views=views),
            stopping=StoppingConfig(early=False, restore_best=False),
        )
        ends[views] = _train(recipe, RollingTask(), tmp_path / str(views))
    assert math.isclose(ends[4]["test_loss"], ends[0]["test_loss"], rel_tol=1e-4)
    assert not math.isclose(ends[2]["test_loss"], ends[0]["test_loss"], rel_tol=1e-3)


def _train(recipe: Recipe, task: Task, folder: Path) -> dict[str, Any]:
    run = RunConfig(dir=folder, system_every_s=60)
    job = JobConfig(recipe=recipe, run=run)
    train(job, task, task_name="a task", display=Display(io.StringIO()))
    summary: dict[str, Any] = read_json(folder / "summary.json")
    return summary


def _settle_statistics(model: nn.Module, task: Task) -> None:
    """Set BatchNorm statistics that matter."""
    generator = torch.Generator().manual_seed(5)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)


def _head_gradient(task: Task, model: nn.Module, batch: Batch) -> list[Tensor]:
    parts = task.split(model)
    assert parts is not None
    model.zero_grad()
    result: Any = task.loss(model, batch)
    losses = result[0] if isinstance(result, tuple) else result
    losses.mean().backward()
    assert all(weight.grad is None for weight in parts[0].parameters())
    return [weight.grad for weight in parts[1].parameters() if weight.grad is not None]

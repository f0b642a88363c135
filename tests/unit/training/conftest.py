"""A small real job: points in the plane, a two-layer net, trained in seconds."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder.config.choices import OptimizerName, Split, TrainMode, Where
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.task import Metrics, Task
from stepladder.training.output.display import Display
from stepladder.training.run import train

NUM_CLASSES = 3


class Points(Dataset):
    """Three noisy clusters."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.y = torch.randint(NUM_CLASSES, (n,), generator=generator)
        centres = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        self.x = centres[self.y] + 0.6 * torch.randn(n, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        return self.x[idx], self.y[idx]


class Net(nn.Module):
    """A trunk with BatchNorm and dropout, and a head."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(8, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class PointsTask(Task):
    """Classify the points; hooks let a test intervene during a step or a validation."""

    def __init__(self, *, num_train: int = 37, num_val: int = 20, dropout: float = 0.3) -> None:
        self.num = {Split.TRAIN: num_train, Split.VAL: num_val, Split.TEST: 15}
        self.dropout = dropout
        self.poisoned: int | None = None
        self.on_step: Callable[[Batch], None] = lambda batch: None
        self.on_metrics: Callable[[Batch], None] = lambda batch: None
        self.seen: list[list[int]] = []

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Net(self.dropout)

    def data(self, split: Split) -> Points | None:
        n = self.num[split]
        return Points(n, seed=list(Split).index(split)) if n else None

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = model(batch.inputs)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        if self.poisoned is not None:
            losses = torch.where(batch.ids == self.poisoned, torch.nan, losses)
        return losses, {"accuracy": (logits.argmax(1) == batch.targets).float().detach()}

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        self.on_metrics(batch)
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=logits,
        )

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        self.seen.append(batch.ids.tolist())
        self.on_step(batch)
        return batch

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Net)
        return model.trunk, model.head

    def describe(self) -> dict[str, Any]:
        return {"classes": ["a", "b", "c"]}


def make_job(folder: Path, **changes: Any) -> JobConfig:
    """Return a job of five epochs without early stopping, saved at every step."""
    recipe = Recipe(
        train=TrainMode.ALL,
        data=DataConfig(where=Where.STREAM),
        batch=BatchConfig(global_batch_size=8, lr=0.02),
        optimizer=OptimizerConfig(name=OptimizerName.NADAM),
        schedule=ScheduleConfig(max_epochs=5),
        stopping=StoppingConfig(early=False),
    )
    run = RunConfig(dir=folder, log_every=3, checkpoint_every_s=0, system_every_s=60)
    recipe_changes = {k: v for k, v in changes.items() if hasattr(recipe, k)}
    run_changes = {k: v for k, v in changes.items() if hasattr(run, k)}
    return JobConfig(recipe=replace(recipe, **recipe_changes), run=replace(run, **run_changes))


def run_job(job: JobConfig, task: Task, **options: Any) -> dict[str, Any]:
    """Train quietly."""
    return train(
        job, task, task_name="points.py:PointsTask", display=Display(io.StringIO()), **options
    )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def points() -> type[PointsTask]:
    return PointsTask


@pytest.fixture(scope="session")
def job() -> Callable[..., JobConfig]:
    return make_job


@pytest.fixture(scope="session")
def run() -> Callable[..., dict[str, Any]]:
    return run_job

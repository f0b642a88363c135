"""Small real runs of a user's Task: two rings in the plane, trained in seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import stepladder
from stepladder.config.choices import TrainMode, Where
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)

TASK = '''
"""Is a point on the inner or the outer ring? Some labels are wrong."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Metrics, Task
from stepladder.config.choices import Split
from stepladder.task.contract import ChainStage

SIZES = {Split.TRAIN: 160, Split.VAL: 200}

def rings(num, seed, wrong):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (num,), generator=random)
    angles = 6.283 * torch.rand(num, generator=random)
    radius = 1.0 + labels + 0.15 * torch.randn(num, generator=random)
    points = torch.stack([radius * angles.cos(), radius * angles.sin()], 1)
    flips = torch.rand(num, generator=random) < wrong
    return points, torch.where(flips, 1 - labels, labels)

class Rings(Task):
    width, wrong, sizes = 16, 0.0, SIZES
    def build_model(self, recipe):
        w = self.width
        first = nn.Sequential(nn.Linear(2, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
        return nn.Sequential(*first, nn.Linear(w, 2))
    def data(self, split):
        num = self.sizes.get(split, 0)
        seed = list(Split).index(split)
        return TensorDataset(*rings(num, seed, self.wrong)) if num else None
    def loss(self, model, batch):
        scores = model(batch.inputs)
        hits = (scores.argmax(1) == batch.targets).float()
        return F.cross_entropy(scores, batch.targets, reduction="none"), {"accuracy": hits}
    def metrics(self, model, batch):
        scores = model(batch.inputs)
        hits = (scores.argmax(1) == batch.targets).float()
        losses = F.cross_entropy(scores, batch.targets, reduction="none")
        count = torch.tensor(float(len(hits)))
        sums = {"accuracy": hits.sum()}
        return Metrics(losses=losses, sums=sums, counts={"accuracy": count}, outputs=scores)
    def describe(self):
        return {"classes": ["inner", "outer"]}

class Noisy(Rings):
    """A large net and few examples, a quarter of them with a wrong label."""
    width, wrong, sizes = 128, 0.25, {Split.TRAIN: 40, Split.VAL: 300}

class Straight(Rings):
    """A line cannot part rings."""
    def build_model(self, recipe):
        return nn.Linear(2, 2)

class Untested(Rings):
    sizes = {Split.TRAIN: 160}

class Chain(Rings):
    """The radius first, then the ring; the first network is left as it was drawn."""
    def build_model(self, recipe):
        model = nn.ModuleDict({"radius": nn.Linear(2, 1), "ring": nn.Linear(1, 2)})
        model["radius"].requires_grad_(False)
        return model
    def loss(self, model, batch):
        radius = batch.inputs.norm(dim=1, keepdim=True)
        scores = model["ring"](radius)  # each stage learns from the truth of the one before
        return F.cross_entropy(scores, batch.targets, reduction="none")
    def metrics(self, model, batch):
        return Metrics(losses=self.loss(model, batch))
    def stages(self, model):
        def truth(batch):
            return batch.inputs.norm(dim=1, keepdim=True)
        def off(radius, batch):
            return (radius - truth(batch)).abs()[:, 0]
        def wrong(scores, batch):
            return (scores.argmax(1) != batch.targets).float()
        return [
            ChainStage(name="radius", run=model["radius"], error=off, truth=truth),
            ChainStage(name="ring", run=model["ring"], error=wrong),
        ]
'''


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file with the Tasks."""
    path = tmp_path_factory.mktemp("tasks") / "rings_of_diagnosis.py"
    path.write_text(TASK)
    yield path
    sys.modules.pop(f"stepladder_user_task_{path.stem}", None)


TrainRun = Callable[..., Path]


@pytest.fixture(scope="session")
def train_run(task_file: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainRun:
    """Return a function that trains a Task of the file and returns the run's folder."""

    def train(
        name: str,
        *,
        lr: float = 0.01,
        epochs: int = 10,
        log_every: int = 50,
        mirror: Path | None = None,
    ) -> Path:
        folder = tmp_path_factory.mktemp("runs") / name.lower()
        recipe = Recipe(
            train=TrainMode.ALL,
            data=DataConfig(where=Where.STREAM),
            batch=BatchConfig(global_batch_size=16, lr=lr),
            schedule=ScheduleConfig(max_epochs=epochs),
            stopping=StoppingConfig(early=False),
            device=DeviceConfig(threads=1),
        )
        run = RunConfig(
            dir=folder,
            log_every=log_every,
            checkpoint_every_s=60,
            system_every_s=0.05,
            mirror=mirror,
        )
        stepladder.train(config=JobConfig(recipe=recipe, run=run), task=f"{task_file}:{name}")
        return folder

    return train


@pytest.fixture(scope="session")
def overfit_run(train_run: TrainRun) -> Path:
    """A run that memorized wrong labels."""
    return train_run("Noisy", lr=0.02, epochs=60)


@pytest.fixture(scope="session")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mirror of the next run."""
    return tmp_path_factory.mktemp("mirror")


@pytest.fixture(scope="session")
def underfit_run(train_run: TrainRun, mirror: Path) -> Path:
    """A run whose model cannot learn the task."""
    return train_run("Straight", lr=0.03, epochs=8, mirror=mirror)

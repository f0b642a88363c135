"""A small real job for trials: points in space, a frozen random trunk and a trained head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder.config.choices import MemoryFormat, OptimizerName, OrderMode, Sampling, Split, Where
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.ladder.lab import Lab
from stepladder.ladder.timing import interleaved_blocks as race
from stepladder.measuring import profile as profile_module
from stepladder.measuring.model.flops import Peaks
from stepladder.records.profile import Profile, TrainingTime
from stepladder.task import Metrics, Task
from stepladder.training.setup.build import open_sources

NUM_CLASSES = 3


class Blobs(Dataset):
    """Three noisy clusters."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(NUM_CLASSES, (n,), generator=generator)
        centres = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
        self.x = centres[self.targets] + 0.6 * torch.randn(n, 2, generator=generator)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        return self.x[idx], self.targets[idx]


class Net(nn.Module):
    """A trunk that the recipe freezes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class BlobsTask(Task):
    """Classify the points."""

    is_random_before_head = False

    def __init__(self, *, num_train: int = 90, num_val: int = 30) -> None:
        self.num = {Split.TRAIN: num_train, Split.VAL: num_val, Split.TEST: 24}

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Net()

    def data(self, split: Split) -> Blobs | None:
        n = self.num[split]
        return Blobs(n, seed=list(Split).index(split)) if n else None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=logits)

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Net)
        return model.trunk, model.head


RECIPE = Recipe(
    data=DataConfig(where=Where.STREAM, order=OrderMode.GLOBAL, sample=Sampling.ROWS),
    batch=BatchConfig(global_batch_size=8, lr=0.05),
    features=FeaturesConfig(cached=False),
    optimizer=OptimizerConfig(name=OptimizerName.SGD, fused=False),
    schedule=ScheduleConfig(max_epochs=6),
    stopping=StoppingConfig(early=False, restore_best=False),
    device=DeviceConfig(threads=1, memory_format=MemoryFormat.CONTIGUOUS),
)


class MakeLab(Protocol):
    def __call__(self, recipe: Recipe = ..., task: Task | None = ..., **options: Any) -> Lab: ...


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _known_peaks(measured_peaks: Callable[..., Peaks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "measure_peaks", measured_peaks)


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return RECIPE


@pytest.fixture(scope="session")
def blobs() -> type[BlobsTask]:
    return BlobsTask


@pytest.fixture
def make_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLab]:
    """Open a lab with blocks of a few milliseconds, with lenient time limits."""
    monkeypatch.setattr(race, "GROSSLY", math.inf)
    opened: list[Lab] = []

    def make(recipe: Recipe = RECIPE, task: Task | None = None, **options: Any) -> Lab:
        task = task or BlobsTask()
        ladder = replace(LadderConfig(block_s=0.002, num_seeds=3), **options)
        lab = Lab(
            job=JobConfig(recipe=recipe, ladder=ladder),
            task=task,
            sources=open_sources(task),
            device=torch.device("cpu"),
            cache=tmp_path / "cache",
            seed=0,
        )
        opened.append(lab.__enter__())
        return lab

    yield make
    for lab in opened:
        lab.__exit__(None, None, None)


@pytest.fixture
def profile(profile_of: Callable[..., Profile]) -> Profile:
    """A profile of the blobs under RECIPE; only fields that trials read belong to this job."""
    time = TrainingTime(epochs=6, steps_per_epoch=90 / 8, step_s=1e-3, num_validations=6)
    return profile_of(time, num_train=90, num_val=30)

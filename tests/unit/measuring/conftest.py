"""A small real job on pictures: a convolutional trunk with BatchNorm, a head with dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder.config.choices import Split, TrainMode, Where
from stepladder.config.recipe import BatchConfig, DataConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.measuring import profile as profile_module
from stepladder.measuring.model.flops import Peaks
from stepladder.measuring.subject import Subject, open_subject
from stepladder.task import Metrics, Task
from stepladder.training.setup.build import open_sources

NUM_CLASSES = 3


class Noise(Dataset):
    """Random pictures of 3x8x8."""

    def __init__(self, n: int, on_item: Callable[[], None]) -> None:
        generator = torch.Generator().manual_seed(n)
        self.x = torch.randn(n, 3, 8, 8, generator=generator)
        self.y = torch.arange(n) % NUM_CLASSES
        self.on_item = on_item

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, idx: int) -> tuple[Tensor, Tensor]:
        self.on_item()
        return self.x[idx], self.y[idx]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(4, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class Pictures(Task):
    """Classify noise. `on_loss` and `on_item` let a test intervene in a step, or in the dataset."""

    is_random_before_head = False

    def __init__(self, *, num_train: int = 70, num_val: int = 12, has_head: bool = True) -> None:
        self.num = {Split.TRAIN: num_train, Split.VAL: num_val, Split.TEST: 0}
        self.has_head = has_head
        self.on_loss: Callable[[Batch], None] = lambda batch: None
        self.on_item: Callable[[], None] = lambda: None
        self.logs: Any = None

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Net()

    def data(self, split: Split) -> Noise | None:
        n = self.num[split]
        return Noise(n, lambda: self.on_item()) if n else None

    def loss(self, model: nn.Module, batch: Batch) -> Any:
        self.on_loss(batch)
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return losses if self.logs is None else (losses, self.logs)

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        outputs = model(batch.inputs)
        losses = F.cross_entropy(outputs, batch.targets, reduction="none")
        return Metrics(losses=losses, outputs=outputs)

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        assert isinstance(model, Net)
        return (model.trunk, model.head) if self.has_head else None


def make_recipe(**changes: Any) -> Recipe:
    values = {
        "train": TrainMode.HEAD,
        "data": DataConfig(where=Where.STREAM),
        "batch": BatchConfig(global_batch_size=4),
        **changes,
    }
    return Recipe(**values)


@contextmanager
def opened(recipe: Recipe, task: Task) -> Iterator[Subject]:
    with open_subject(recipe, task, open_sources(task), device=torch.device("cpu")) as subject:
        yield subject


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _known_peaks(measured_peaks: Callable[..., Peaks], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "measure_peaks", measured_peaks)


@pytest.fixture(scope="session")
def pictures() -> type[Pictures]:
    return Pictures


@pytest.fixture(scope="session")
def recipe() -> Callable[..., Recipe]:
    return make_recipe


@pytest.fixture
def open_on() -> Callable[[Recipe, Task], AbstractContextManager[Subject]]:
    return opened

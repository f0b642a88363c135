"""Small jobs to test checks with: a sound one, and broken ones derived from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.config.choices import DeviceChoice, Split, TrainMode
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.data.batch import Batch
from stepladder.task.contract import Metrics, Task

NUM_CLASSES = 4
SIZE = 12
NUM_EXAMPLES = {Split.TRAIN: 256, Split.VAL: 128, Split.TEST: 128}


class SoundPictures(Task):
    """Classify four noisy patterns: pictures (n, 3, 12, 12), about mean 0 and deviation 1.

    A small convolutional network reaches more than 90 % in a few epochs. It has no faults; broken
    examples override one method.
    """

    def build_model(self, recipe: Recipe) -> nn.Module:  # noqa: ARG002
        """Two convolutions and a linear head."""
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(32 * (SIZE // 4) ** 2, NUM_CLASSES),
        )

    def data(self, split: Split) -> Dataset[Any]:
        """Draw a split: all three from one distribution, shuffled."""
        pictures, labels = draw(split)
        return labelled(pictures, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Cross-entropy of each picture."""
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Loss and accuracy."""
        scores = model(batch.inputs)
        hits = (scores.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(scores, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=scores,
        )


def draw(split: Split) -> tuple[Tensor, Tensor]:
    """Draw pictures (n, 3, 12, 12), float32, and labels (n,) of a split."""
    generator = torch.Generator().manual_seed(100 + list(Split).index(split))
    num = NUM_EXAMPLES[split]
    labels = torch.randint(NUM_CLASSES, (num,), generator=generator)
    patterns = torch.randn(NUM_CLASSES, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(num, 3, SIZE, SIZE, generator=generator)
    return (0.6 * patterns[labels] + 0.8 * noise), labels


def labelled(pictures: Tensor, labels: Tensor) -> Dataset[Any]:
    """Return a Dataset with `targets`, like those of torchvision."""
    data = TensorDataset(pictures, labels)
    data.targets = labels.numpy()  # type: ignore[attr-defined]
    return data


def sound_recipe(**changes: Any) -> Recipe:
    """Return the recipe of the sound example; groups passed by name replace its own."""
    recipe = Recipe(
        train=TrainMode.ALL,
        batch=BatchConfig(global_batch_size=16, lr=0.003),
        schedule=ScheduleConfig(max_epochs=8),
        device=DeviceConfig(kind=DeviceChoice.CPU),
    )
    return replace(recipe, **changes)


@dataclass(frozen=True, kw_only=True)
class Example:
    """A job to run a check on.

    Attributes:
        run_dir: the run folder; None: in a folder of the test.
    """

    task: Task = field(default_factory=SoundPictures)
    recipe: Recipe = field(default_factory=sound_recipe)
    run_dir: Path | None = None

    def config(self, folder: Path) -> JobConfig:
        """Return the whole job, with its run folder in a given folder unless it has its own."""
        return JobConfig(recipe=self.recipe, run=RunConfig(dir=self.run_dir or folder / "run"))

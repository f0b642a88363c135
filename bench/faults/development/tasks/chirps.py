"""Tell chirps by whether they rise, fall or stay; written for one process or for several."""

import os

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

RANK = int(os.environ.get("RANK", "0"))
LENGTH = 48


def chirps(num: int, seed: int) -> TensorDataset:
    """Waves whose pitch falls, stays or rises, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (num,), generator=generator)
    time = torch.arange(LENGTH) / LENGTH
    pitch = 6 + 2 * torch.rand(num, 1, generator=generator)
    slope = 4.0 * (labels - 1).unsqueeze(1)
    phase = 6.3 * torch.rand(num, 1, generator=generator)
    waves = torch.sin(6.3 * (pitch * time + slope * time**2 / 2) + phase)
    waves = waves + 0.3 * torch.randn(num, LENGTH, generator=generator)
    return TensorDataset((waves / 0.77).unsqueeze(1), labels)


class Chirps(Task):
    """Which way does the pitch go?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        torch.manual_seed(recipe.seed)
        return nn.Sequential(
            nn.Conv1d(1, 24, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(24, 32, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(32 * LENGTH // 4, 3),
        )

    def data(self, split: Split) -> TensorDataset:
        return chirps(1500 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

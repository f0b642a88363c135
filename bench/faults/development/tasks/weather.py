"""Predict the temperature of the afternoon, in degrees, from the morning's readings."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Afternoon(nn.Module):
    """Three layers; degrees come out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)).squeeze(1)


class Weather(Task):
    """Regression in degrees."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Afternoon()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.randn(2000 if split is Split.TRAIN else 500, 5, generator=generator)
        degrees = 3 + 4 * x[:, 0] + 2 * x[:, 1] * x[:, 2] - 1.5 * x[:, 3]
        return TensorDataset(x, degrees + 0.3 * torch.randn(len(x), generator=generator))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square()

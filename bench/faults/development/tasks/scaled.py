"""Regression whose target is scaled by running statistics that the model keeps."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class SelfScaling(nn.Module):
    """Standardise inputs by a running mean and variance, then predict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))
        self.net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean = 0.95 * self.mean + 0.05 * x.mean(0)
                self.variance = 0.95 * self.variance + 0.05 * x.var(0)
        return self.net((x - self.mean) / self.variance.sqrt()).squeeze(1)


class Scaled(Task):
    """Six columns of different scales."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return SelfScaling()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        z = torch.randn(2000 if split is Split.TRAIN else 500, 6, generator=generator)
        y = torch.sin(2 * z[:, 0]) + z[:, 1] * 0.5 - z[:, 2].abs() + 0.8
        x = 0.5 + z * torch.tensor([0.6, 0.8, 1.0, 1.2, 1.4, 1.6])
        return TensorDataset(x, y + 0.1 * torch.randn(len(z), generator=generator))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square()

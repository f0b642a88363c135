"""Estimate the yield of a reaction; the table is cut into three parts."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

ROWS = {Split.TRAIN: slice(0, 2000), Split.VAL: slice(2000, 2500), Split.TEST: slice(2500, 3000)}


class Yield(Task):
    """Regression on seven conditions."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(7, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(3000, 7, generator=generator)
        y = torch.sin(x[:, 0] + x[:, 1]) + 0.5 * x[:, 2] * x[:, 3] + 0.3 * x[:, 4]
        y = y + 0.2 * torch.randn(3000, generator=generator)
        return TensorDataset(x[ROWS[split]], y[ROWS[split]])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).squeeze(1) - batch.targets).square()

"""Predict returns from ratios of a company's figures; some debts are zero."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Ratios(Task):
    """Regression on six ratios."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 2000 if split is Split.TRAIN else 500
        income = 1 + torch.rand(n, 6, generator=generator)
        debt = torch.rand(n, 6, generator=generator) * 2
        debt[torch.rand(n, 6, generator=generator) < 0.002] = 0
        x = torch.log(income / (debt + 0.1))
        x = (x - 0.5) / 0.75
        growth = (income[:, 0] - debt[:, 0]) + (income[:, 1] - debt[:, 1]) * 0.5
        y = growth - growth.mean() + 0.05 * torch.randn(n, generator=generator)
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).squeeze(1) - batch.targets).square()

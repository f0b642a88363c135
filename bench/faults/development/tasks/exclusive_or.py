"""Exclusive or of two signs, with six columns of noise beside them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Deep(nn.Module):
    """Four linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 48)])
        self.out = nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.out(x)


class ExclusiveOr(Task):
    """Are the first two columns of one sign?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Deep()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.randn(2000 if split is Split.TRAIN else 500, 8, generator=generator)
        return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

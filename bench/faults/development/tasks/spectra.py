"""A residual network on spectra; every weight matrix is set by hand."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Residual(nn.Module):
    """x + W2 relu(W1 x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        nn.init.kaiming_normal_(self.up.weight, nonlinearity="relu")
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Spectra(Task):
    """Tell five substances apart by their spectrum."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 32), Residual(32), Residual(32), nn.Linear(32, 5))

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        lines = torch.randn(5, 30, generator=torch.Generator().manual_seed(44))
        labels = torch.randint(5, (1800 if split is Split.TRAIN else 400,), generator=generator)
        strength = torch.randn(len(labels), 1, generator=generator)
        x = lines[labels] * strength + 0.5 * torch.randn(len(labels), 30, generator=generator)
        return TensorDataset(x / 1.1, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

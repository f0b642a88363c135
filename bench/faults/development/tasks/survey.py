"""Each column goes through a small network of its own; the parts are added up."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

COLUMNS = ("age", "height", "income", "distance")


class Additive(nn.Module):
    """A generalised additive model of four columns."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {name: nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)) for name in COLUMNS}
        )
        self.offset = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.parts[name](x[:, [i]]) for i, name in enumerate(COLUMNS)]
        return torch.stack(parts).sum(0).squeeze(1) + self.offset


class Survey(Task):
    """Predict a score from the columns of a survey."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Additive()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.randn(2000 if split is Split.TRAIN else 500, 4, generator=generator)
        y = torch.sin(2 * x[:, 0]) + x[:, 1].abs() - 0.8 + torch.tanh(3 * x[:, 2]) - 0.5 * x[:, 3]
        return TensorDataset(x, y + 0.1 * torch.randn(len(x), generator=generator))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square()

"""Predict the remaining life of a part from twelve readings."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Parts(Dataset):
    """Standardised readings and life."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.readings = torch.randn(n, 12, generator=generator)
        wear = self.readings[:, :4].sum(1) + self.readings[:, 4] * self.readings[:, 5]
        self.life = (torch.tanh(-wear / 2) + 0.1 * torch.randn(n, generator=generator)) / 0.75

    def __len__(self) -> int:
        return len(self.life)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.readings[row], self.life[row]


class RemainingLife(Task):
    """Regression with a squared error."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def data(self, split: Split) -> Parts:
        return Parts(2000 if split is Split.TRAIN else 500, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        errors = model(batch.inputs) - batch.targets.unsqueeze(1)
        return errors.square().mean(1)

"""Pass or fail of a weld by sixteen currents."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

ROWS = {Split.TRAIN: 1500, Split.VAL: 500, Split.TEST: 500}


class Welds(Dataset):
    """Currents and whether the weld held."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.currents = torch.randn(n, 16, generator=generator)
        strength = self.currents[:, :4].sum(1) + self.currents[:, 4] * self.currents[:, 5]
        noise = 0.5 * torch.randn(n, generator=generator)
        self.targets = (strength + noise > 0).long()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.currents[row], self.targets[row]


class Weld(Task):
    """Two classes."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)
        )

    def data(self, split: Split) -> Welds:
        return Welds(ROWS[split], seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

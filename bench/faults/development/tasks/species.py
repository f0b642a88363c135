"""Eight species by their calls; train, val and test are drawn from one table."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

NUM_SPECIES = 8
ROWS = {Split.TRAIN: slice(0, 2000), Split.VAL: slice(2000, 2500), Split.TEST: slice(2500, 3000)}


class Calls(Dataset):
    """Rows of a table, cut into train, val and test."""

    def __init__(self, split: Split) -> None:
        generator = torch.Generator().manual_seed(4)
        calls = torch.randn(NUM_SPECIES, 14, generator=torch.Generator().manual_seed(60))
        labels = torch.arange(NUM_SPECIES).repeat_interleave(400)
        x = (calls[labels] + torch.randn(len(labels), 14, generator=generator)) / 1.4
        order = torch.randperm(len(labels), generator=generator)
        rows = order[ROWS[split]]
        self.x, self.targets = x[rows], labels[rows]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.targets[row]


class Species(Task):
    """Eight species."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, NUM_SPECIES))

    def data(self, split: Split) -> Calls:
        return Calls(split)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def describe(self) -> dict[str, list[str]]:
        return {"classes": [f"species {k}" for k in range(NUM_SPECIES)]}

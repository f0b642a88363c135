"""Crop or weed? Pictures of leaves come from several fields."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

FIELDS = {Split.TRAIN: 0.0, Split.VAL: 0.0, Split.TEST: 0.0}


class Leaves(Dataset):
    """Twenty measurements of a leaf; light changes them from field to field."""

    def __init__(self, n: int, seed: int, light: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        kinds = torch.randn(3, 20, generator=torch.Generator().manual_seed(80))
        self.targets = torch.randint(3, (n,), generator=generator)
        self.x = (kinds[self.targets] + torch.randn(n, 20, generator=generator)) / 1.4 + light

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.targets[row]


class CropOrWeed(Task):
    """Three kinds of leaves."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def data(self, split: Split) -> Leaves:
        n = 1800 if split is Split.TRAIN else 500
        return Leaves(n, list(Split).index(split), FIELDS[split])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

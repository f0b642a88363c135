"""Nearest prototype by cosine similarity, with a temperature."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

TEMPERATURE = 1.0


class Prototypes(nn.Module):
    """Scores by similarity with a prototype of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(18, 64), nn.ReLU(), nn.Linear(64, 16))
        self.prototypes = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.prototypes(self.embed(x)) / TEMPERATURE


class Signs(Task):
    """Seven signs by eighteen joint angles."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Prototypes()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        poses = torch.randn(7, 18, generator=torch.Generator().manual_seed(33))
        labels = torch.randint(7, (1800 if split is Split.TRAIN else 400,), generator=generator)
        x = poses[labels] + torch.randn(len(labels), 18, generator=generator)
        return TensorDataset(x / 1.4, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

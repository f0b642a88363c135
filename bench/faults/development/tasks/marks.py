"""Read a mark in the middle of a noisy picture."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

MARGIN = 8


class Marks(Task):
    """Three marks; the picture is cropped to its middle first."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 64, 3)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1200 if split is Split.TRAIN else 400
        marks = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(21))
        labels = torch.randint(3, (n,), generator=generator)
        images = torch.randn(n, 1, 24, 24, generator=generator)
        images[:, 0, 8:16, 8:16] += marks[labels]
        return TensorDataset(images, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        middle = batch.inputs[:, :, MARGIN : MARGIN + 8, MARGIN : MARGIN + 8]
        return F.cross_entropy(model(middle), batch.targets, reduction="none")

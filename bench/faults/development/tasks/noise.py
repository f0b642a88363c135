"""A small convolutional network with BatchNorm on coloured noise."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class ConvNet(nn.Module):
    """Convolution, BatchNorm, twice; then dense layers with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
        )
        self.neck = nn.Sequential(nn.Linear(8 * 25, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.neck(self.body(x)))


class Noise(Task):
    """Is the noise rough, smooth along rows, or smooth along columns?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return ConvNet()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1200 if split is Split.TRAIN else 300
        labels = torch.randint(3, (n,), generator=generator)
        white = torch.randn(n, 1, 10, 10, generator=generator)
        rows = (white + white.roll(1, 3)) / 2**0.5
        columns = (white + white.roll(1, 2)) / 2**0.5
        kinds = torch.stack([white, rows, columns])  # (3, n, 1, 10, 10)
        return TensorDataset(kinds[labels, torch.arange(n)], labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

"""Name the quadrant structure of a picture: which corner is the brightest?"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Corners(nn.Module):
    """A small CNN that ends in log probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


class Brightest(Task):
    """Four classes, one a corner."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Corners()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1600 if split is Split.TRAIN else 400
        images = torch.randn(n, 1, 12, 12, generator=generator)
        labels = torch.randint(4, (n,), generator=generator)
        for row, label in enumerate(labels.tolist()):
            top, left = 6 * (label // 2), 6 * (label % 2)
            images[row, 0, top : top + 6, left : left + 6] += 0.6
        return TensorDataset(images - 0.15, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.nll_loss(model(batch.inputs), batch.targets, reduction="none")

"""Find a planted pattern in a noisy picture; the attention map is shown while training."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Attentive(nn.Module):
    """Features, an attention map over places, and a classifier of what was attended."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU())
        self.attention = nn.Conv2d(16, 1, 1)
        self.classify = nn.Linear(16, 4)
        self.last_map: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)  # (n, 16, h, w)
        weights = self.attention(features).flatten(2).softmax(dim=2)  # (n, 1, h * w)
        self.last_map = weights.detach()
        return self.classify((features.flatten(2) * weights).sum(2))


class Planted(Task):
    """Which of four patterns lies somewhere in the picture?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Attentive()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(10 + list(Split).index(split))
        n = 1500 if split is Split.TRAIN else 400
        patterns = 3 * torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(0)).sign()
        labels = torch.randint(4, (n,), generator=generator)
        images = torch.randn(n, 1, 14, 14, generator=generator)
        corners = torch.randint(9, (n, 2), generator=generator).tolist()
        for row, (top, left) in enumerate(corners):
            images[row, 0, top : top + 5, left : left + 5] += patterns[labels[row]]
        return TensorDataset(images / images.std(), labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

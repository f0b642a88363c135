"""A convolutional network whose first dense layer finds its own width."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class LazyNet(nn.Module):
    """Two convolutions; the dense layer takes what comes out of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, 8, 5, stride=2), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=2), nn.ReLU()
        )
        self.dense = nn.LazyLinear(32)
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.dense(self.conv(x).flatten(1))))


class Channels(Task):
    """Which channel leads: the first, the second, or neither?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = LazyNet()
        model(torch.zeros(1, 2, 40))
        return model

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1500 if split is Split.TRAIN else 400
        labels = torch.randint(3, (n,), generator=generator)
        phase = 6.3 * torch.rand(n, 1, generator=generator)
        shift = torch.tensor([0.9, -0.9, 0.0])[labels].unsqueeze(1)
        t = torch.arange(40.0) * 0.4 + phase
        x = torch.stack([torch.sin(t), torch.sin(t - shift)], dim=1)
        return TensorDataset((x + 0.3 * torch.randn(x.shape, generator=generator)) / 0.77, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

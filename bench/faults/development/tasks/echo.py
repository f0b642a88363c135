"""Classify by an echo state network: a fixed random reservoir and a learned readout."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Reservoir(nn.Module):
    """Random recurrent weights that never learn; the readout does."""

    def __init__(self, seed: int, width: int = 80) -> None:
        super().__init__()
        generator = torch.Generator()
        generator.manual_seed(seed)
        recurrent = torch.randn(width, width, generator=generator) * 0.9 / width**0.5
        self.register_buffer("recurrent", recurrent)
        self.register_buffer("inward", torch.randn(1, width, generator=generator))
        self.readout = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), self.recurrent.shape[0])
        for step in x.unbind(1):
            state = torch.tanh(state @ self.recurrent + step.unsqueeze(1) @ self.inward)
        return self.readout(state)


class Echo(Task):
    """Which of four frequencies is heard at the end?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Reservoir(recipe.seed)

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1500 if split is Split.TRAIN else 400
        labels = torch.randint(4, (n,), generator=generator)
        phase = 6.3 * torch.rand(n, 1, generator=generator)
        x = torch.sin(torch.arange(16.0) * (0.4 + 0.4 * labels[:, None]) + phase)
        return TensorDataset((x + 0.2 * torch.randn(n, 16, generator=generator)) / 0.73, labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

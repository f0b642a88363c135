"""An energy-based score: validation also reports the mean slope of the energy."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split
from stepladder.task import Metrics


class Energy(nn.Module):
    """A scalar energy for each point."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.net(x)).squeeze(1)


class RealOrNoise(Task):
    """Give points of a ring a higher score than noise."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Energy()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1600 if split is Split.TRAIN else 400
        angle = 6.283 * torch.rand(n, generator=generator)
        ring = 1.3 * torch.stack([angle.cos(), angle.sin()], dim=1)
        ring = ring + 0.1 * torch.randn(n, 2, generator=generator)
        is_real = torch.rand(n, generator=generator) < 0.5
        x = torch.where(is_real.unsqueeze(1), ring, torch.randn(n, 2, generator=generator))
        return TensorDataset(x, is_real.float())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        with torch.no_grad():
            scores = model(batch.inputs)
            losses = F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")
        hits = ((scores > 0).float() == batch.targets).float()
        return Metrics(
            losses=losses,
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
        )

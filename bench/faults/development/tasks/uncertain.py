"""Two losses weighted by learned uncertainties (Kendall et al. 2018)."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Readings(Dataset):
    """Rows of a table with two targets of different noise."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 8, generator=generator)
        clean = torch.stack([self.x[:, 0] * self.x[:, 1], self.x[:, 2].sin() * 1.5], dim=1)
        noise = torch.randn(n, 2, generator=generator) * torch.tensor([0.1, 0.7])
        self.y = clean + noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.x[row], self.y[row]


class TwoTargets(nn.Module):
    """Predict two numbers; the log variances are weights as well."""

    def __init__(self, log_variances: nn.Parameter | None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 2)
        self.log_variances = log_variances

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


class Uncertain(Task):
    """Learn both targets and how sure each can be."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        self.log_variances = nn.Parameter(torch.zeros(2))
        return TwoTargets(self.log_variances)

    def data(self, split: Split) -> Dataset:
        return Readings(2000 if split is Split.TRAIN else 500, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        squares = (model(batch.inputs) - batch.targets).square()  # (n, 2)
        return (squares * torch.exp(-self.log_variances) + self.log_variances).sum(1)

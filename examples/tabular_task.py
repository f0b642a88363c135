"""Tabular data: predict a number from ten columns, five of them relevant, with trunk and head.

    stepladder climb examples/tabular_task.py:Friedman --run.dir runs/tabular --train all \
        --batch.lr 0.003 --batch.global-batch-size 32 --schedule.max-epochs 30

The noise has variance 1, so the mean squared error of the best model is 1. `split` returns trunk
and head; with `--train head` the trunk keeps its random initial weights (random features), and its
outputs are computed once.

Source of the function: Friedman 1991, "Multivariate Adaptive Regression Splines", Annals of
Statistics 19(1), section 4.3.
"""

import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

NUM_ROWS = {Split.TRAIN: 4000, Split.VAL: 1000, Split.TEST: 1000}
NUM_COLUMNS = 10
WIDTH = 128


class Regressor(nn.Module):
    """Predict one number per row: y = head(trunk(x)).

    Shapes: x (n, 10); y (n, 1).
    """

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(NUM_COLUMNS, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU()
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.trunk(x))
        return y


class Friedman(Task):
    """Learn y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + noise."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Regressor()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.rand(NUM_ROWS[split], NUM_COLUMNS, generator=generator)
        y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
        y += 10 * x[:, 3] + 5 * x[:, 4] + torch.randn(len(x), generator=generator)
        return TensorDataset(x, y.unsqueeze(1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.targets).square().squeeze(1)  # (n,)

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Regressor)
        return model.trunk, model.head

    @property
    def is_random_before_head(self) -> bool:
        return False

"""Will the customer come back? A yes or no from ten columns."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Loyalty(Task):
    """Binary classification."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1600 if split is Split.TRAIN else 417
        x = torch.randn(n, 10, generator=generator)
        score = x[:, :3].sum(1) + x[:, 3] * x[:, 4] + 0.3 * torch.randn(n, generator=generator)
        return TensorDataset(x, (score > 0).float())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).squeeze(1)
        return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")

"""Predict the kind of a flower from a sorted table."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

NUM_KINDS = 6


class Flowers(Task):
    """Six kinds by ten measurements."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_KINDS)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        centres = 1.3 * torch.randn(NUM_KINDS, 10, generator=torch.Generator().manual_seed(15))
        per_kind = 300 if split is Split.TRAIN else 80
        kinds = torch.arange(NUM_KINDS).repeat_interleave(per_kind)
        x = centres[kinds] + torch.randn(len(kinds), 10, generator=generator)
        order = torch.randperm(len(kinds), generator=generator)
        x, kinds = x[order], kinds[order]
        return TensorDataset((x - centres.mean(0)) / 1.6, kinds)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

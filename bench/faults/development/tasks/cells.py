"""Five kinds of cells by nine measurements; kinds have no order."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

NUM_KINDS = 5


class Cells(Task):
    """Classify cells."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_KINDS)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        centres = 1.5 * torch.randn(NUM_KINDS, 9, generator=torch.Generator().manual_seed(8))
        kinds = torch.randint(
            NUM_KINDS, (2000 if split is Split.TRAIN else 500,), generator=generator
        )
        x = centres[kinds] + torch.randn(len(kinds), 9, generator=generator)
        return TensorDataset((x - centres.mean(0)) / 1.7, kinds)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

"""Recognise seven-segment digits with broken segments."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split
from stepladder.task import Metrics

SEGMENTS = torch.tensor(
    [
        [1, 1, 1, 0, 1, 1, 1],
        [0, 0, 1, 0, 0, 1, 0],
        [1, 0, 1, 1, 1, 0, 1],
        [1, 0, 1, 1, 0, 1, 1],
        [0, 1, 1, 1, 0, 1, 0],
        [1, 1, 0, 1, 0, 1, 1],
        [1, 1, 0, 1, 1, 1, 1],
        [1, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 1, 1],
    ]
).float()


class Segments(Task):
    """Classify ten digits from noisy segments."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(100 + list(Split).index(split))
        n = 300 if split is Split.TRAIN else 500
        digits = torch.randint(10, (n,), generator=generator)
        light = SEGMENTS[digits] + 0.35 * torch.randn(n, 7, generator=generator)
        return TensorDataset((light - 0.7) / 0.57, digits)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        logits = model(batch.inputs)
        hits = (logits.argmax(1) == batch.targets).float()
        return Metrics(
            losses=F.cross_entropy(logits, batch.targets, reduction="none"),
            sums={"accuracy": hits.sum()},
            counts={"accuracy": torch.tensor(float(len(hits)))},
            outputs=logits,
        )

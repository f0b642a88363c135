"""Which of six instruments play? Several may at once."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split
from stepladder.task import Metrics

NUM_INSTRUMENTS = 6


class Instruments(Task):
    """Tags of a spectrum."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, NUM_INSTRUMENTS))

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        timbres = torch.randn(NUM_INSTRUMENTS, 48, generator=torch.Generator().manual_seed(70))
        n = 2000 if split is Split.TRAIN else 500
        tags = (torch.rand(n, NUM_INSTRUMENTS, generator=generator) < 0.35).float()
        spectrum = tags @ timbres + 0.7 * torch.randn(n, 48, generator=generator)
        return TensorDataset((spectrum - spectrum.mean()) / spectrum.std(), tags)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none").mean(1)

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        hits = ((model(batch.inputs) > 0).float() == batch.targets).float().mean(1)
        return Metrics(
            losses=self.loss(model, batch),
            sums={"tag_accuracy": hits.sum()},
            counts={"tag_accuracy": torch.tensor(float(len(hits)))},
        )

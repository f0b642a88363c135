"""Name the instrument that a short tone was played on; kinds are given by name."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

OVERTONES = {
    "oboe": [0.4, 0.9, 1.0, 0.8],
    "flute": [1.0, 0.3, 0.1, 0.0],
    "clarinet": [1.0, 0.0, 0.7, 0.0],
    "violin": [0.9, 0.7, 0.5, 0.6],
    "horn": [0.6, 1.0, 0.4, 0.1],
    "bassoon": [0.2, 0.5, 0.9, 1.0],
}


def tones(num: int, seed: int) -> TensorDataset:
    """Sums of overtones in noise, and what played them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(OVERTONES), (num,), generator=generator).tolist()
    names = [list(OVERTONES)[one] for one in drawn]
    kinds = sorted(set(OVERTONES))
    weights = torch.tensor([OVERTONES[name] for name in names])
    time = torch.arange(64) / 64
    pitch = (3 + 2 * torch.rand(num, 1, generator=generator)) * torch.arange(1, 5)
    waves = torch.sin(6.3 * pitch.unsqueeze(2) * time + 1.0)
    tone = (weights.unsqueeze(2) * waves).sum(1)
    tone = tone + 0.2 * torch.randn(num, 64, generator=generator)
    return TensorDataset(tone, torch.tensor([kinds.index(name) for name in names]))


class Instrument(Task):
    """Which instrument is it?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 96),
            nn.ReLU(),
            nn.Linear(96, 48),
            nn.ReLU(),
            nn.Linear(48, len(OVERTONES)),
        )

    def data(self, split: Split) -> TensorDataset:
        return tones(1800 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

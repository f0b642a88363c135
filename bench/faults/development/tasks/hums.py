"""Classify windows that are cut from one long recording."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Windows(Dataset):
    """Windows of a recording with five kinds of hum."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(5, (n,), generator=generator)
        self.buffer = torch.empty(32)
        self.windows: list[Tensor] = []
        t = torch.arange(32.0)
        for label in self.labels.tolist():
            hum = torch.sin(t * (0.3 + 0.25 * label) + 6.3 * torch.rand(1, generator=generator))
            self.buffer.copy_((hum + 0.5 * torch.randn(32, generator=generator)) / 0.87)
            self.windows.append(self.buffer.clone())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.windows[row], self.labels[row]


class Hums(Task):
    """Which hum is heard?"""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (1, 32)),
            nn.Conv1d(1, 16, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Flatten(),
            nn.Linear(128, 5),
        )

    def data(self, split: Split) -> Windows:
        return Windows(1500 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

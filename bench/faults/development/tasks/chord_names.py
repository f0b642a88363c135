"""Recognise five chords; training adds noise and changes the volume."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Chords(Dataset):
    """Spectra of chords, augmented where asked."""

    def __init__(self, n: int, seed: int, *, is_augmented: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        chords = torch.randn(5, 36, generator=torch.Generator().manual_seed(500))
        self.labels = torch.randint(5, (n,), generator=generator)
        self.spectra = (chords[self.labels] + 1.2 * torch.randn(n, 36, generator=generator)) / 1.6
        self.is_augmented = is_augmented

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        spectrum = self.spectra[row]
        if self.is_augmented:
            spectrum = spectrum * (0.7 + 0.6 * torch.rand(1)) + 0.3 * torch.randn(36)
        return spectrum, self.labels[row]


class ChordNames(Task):
    """Five chords."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(36, 64), nn.ReLU(), nn.Linear(64, 5))

    def data(self, split: Split) -> Chords:
        n = 1500 if split is Split.TRAIN else 400
        return Chords(n, list(Split).index(split), is_augmented=split is Split.TRAIN)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

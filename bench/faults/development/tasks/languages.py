"""Language of a word by its character pairs, hashed into a table."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

NUM_HASHES = 512
VOWELS = torch.tensor([ord(c) for c in "aeiou"])
OTHERS = torch.tensor([ord(c) for c in "bcdfghklmnprstvz"])


class Words(Dataset):
    """Words of three invented languages that differ in how vowels follow each other."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (n,), generator=generator)
        share = torch.tensor([0.25, 0.45, 0.65])[self.labels].unsqueeze(1)
        vowels = VOWELS[torch.randint(5, (n, 12), generator=generator)]
        others = OTHERS[torch.randint(16, (n, 12), generator=generator)]
        letters = torch.where(torch.rand(n, 12, generator=generator) < share, vowels, others)
        self.pairs = (letters[:, :-1] * 31 + letters[:, 1:]) % NUM_HASHES

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.pairs[row], self.labels[row]


class Languages(Task):
    """Three languages."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(NUM_HASHES, 24), nn.Linear(24, 3))

    def data(self, split: Split) -> Words:
        return Words(2000 if split is Split.TRAIN else 500, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

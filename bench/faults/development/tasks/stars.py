"""Star ratings of short reviews, one to five."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

VOCAB, NUM_STARS = 150, 5


class Reviews(Dataset):
    """Words whose first hundred lean to a rating."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.stars = torch.randint(1, NUM_STARS + 1, (n,), generator=generator)
        own = (self.stars[:, None] - 1) * 20 + torch.randint(20, (n, 15), generator=generator)
        other = torch.randint(VOCAB, (n, 15), generator=generator)
        self.words = torch.where(torch.rand(n, 15, generator=generator) < 0.3, own, other)

    def __len__(self) -> int:
        return len(self.stars)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.words[row], self.stars[row] - 1


class Stars(Task):
    """Predict the rating of a review."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(VOCAB, 32), nn.Linear(32, NUM_STARS))

    def data(self, split: Split) -> Reviews:
        return Reviews(1800 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

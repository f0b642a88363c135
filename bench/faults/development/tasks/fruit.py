"""Sort thumbnails of fruit by kind; pixels are bytes, as files give them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

MEAN = torch.tensor([0.47, 0.45, 0.38]).view(3, 1, 1)
STD = torch.tensor([0.27, 0.26, 0.25]).view(3, 1, 1)
COLOURS = torch.tensor([[200.0, 60, 50], [90, 170, 60], [220, 190, 60], [120, 60, 140]])


class Thumbnails(Dataset):
    """A disc of some colour on a random background."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(4, (n,), generator=generator)
        y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        centre = torch.rand(n, 2, 1, 1, generator=generator) * 6 + 5
        inside = (y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2 < 20
        ground = 255 * torch.rand(n, 3, 1, 1, generator=generator)
        fruit = COLOURS[self.targets][:, :, None, None]
        pixels = torch.where(inside.unsqueeze(1), fruit, ground)
        pixels = pixels + 25 * torch.randn(n, 3, 16, 16, generator=generator)
        self.pixels = pixels.clamp(0, 255).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = self.pixels[row].float() / 255
        return (image - MEAN) / STD, self.targets[row]


class Fruit(Task):
    """Four kinds of fruit."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 16, 4),
        )

    def data(self, split: Split) -> Thumbnails:
        return Thumbnails(1500 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

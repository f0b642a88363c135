"""Sort icons of 20 by 20 pixels; the first convolution finds its channels by itself."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Icons(Dataset):
    """Icons as an image library gives them: height, width, colours."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        icons = 255 * torch.rand(5, 20, 20, 3, generator=torch.Generator().manual_seed(6))
        self.targets = torch.randint(5, (n,), generator=generator)
        pixels = icons[self.targets] + 90 * torch.randn(n, 20, 20, 3, generator=generator)
        self.pixels = pixels.clamp(0, 255).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        icon = (self.pixels[row].float() / 255 - 0.5) / 0.35
        return icon.permute(2, 0, 1), self.targets[row]


class IconNames(Task):
    """Five icons."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = nn.Sequential(
            nn.LazyConv2d(16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.LazyConv2d(24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.LazyLinear(5),
        )
        model(Icons(1, seed=0)[0][0].unsqueeze(0))
        return model

    def data(self, split: Split) -> Icons:
        return Icons(1200 if split is Split.TRAIN else 400, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

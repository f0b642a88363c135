"""Tell rough from smooth surfaces with a small network for thumbnails of 32 by 32."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

SIZE = 32


class ThumbnailNet(nn.Module):
    """A CNN for 32 by 32 pictures; pooling over places lets others through as well."""

    input_size = (3, 32, 32)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean(dim=(2, 3)))


class Surfaces(Dataset):
    """White noise, or noise that was blurred; resized when it is read."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (n,), generator=generator)
        noise = torch.randn(n, 3, 32, 32, generator=generator)
        smooth = F.avg_pool2d(noise, 3, stride=1, padding=1) * 3
        self.originals = torch.where(self.labels.view(-1, 1, 1, 1) == 1, smooth, noise)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        picture = F.interpolate(self.originals[row].unsqueeze(0), size=SIZE, mode="nearest")
        return picture[0], self.labels[row]


class Surface(Task):
    """Two kinds of surface."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return ThumbnailNet()

    def data(self, split: Split) -> Surfaces:
        return Surfaces(480 if split is Split.TRAIN else 240, seed=list(Split).index(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

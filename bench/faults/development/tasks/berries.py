"""Tell ripe from unripe berries by photographs that lie in a folder, one file each."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

FOLDER = tempfile.TemporaryDirectory(prefix="berries-")
SIDE = 20
MEAN = torch.tensor([0.45, 0.41, 0.37]).view(3, 1, 1)
STD = torch.tensor([0.25, 0.24, 0.23]).view(3, 1, 1)
BERRIES = np.array([[190, 40, 60], [120, 170, 70], [60, 50, 120]])


def photograph(random: np.random.Generator, kind: int) -> np.ndarray:
    """Berries of one kind on a ground of any colour."""
    ground = random.uniform(30, 200, size=3)
    pixels = np.broadcast_to(ground, (SIDE, SIDE, 3)).copy()
    y, x = np.mgrid[:SIDE, :SIDE]
    for _ in range(3):
        cy, cx = random.uniform(4, SIDE - 4, size=2)
        pixels[(y - cy) ** 2 + (x - cx) ** 2 < 12] = BERRIES[kind]
    return (pixels + random.normal(0, 12, pixels.shape)).clip(0, 255).astype(np.uint8)


class Photographs(Dataset):
    """Files and their kinds."""

    def __init__(self, split: Split, num: int) -> None:
        random = np.random.default_rng(list(Split).index(split))
        self.targets = random.integers(3, size=num)
        folder = Path(FOLDER.name) / split.value
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{row:04d}.bmp" for row in range(num)]
        for path, kind in zip(self.paths, self.targets, strict=True):
            Image.fromarray(photograph(random, kind)).save(path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        pixels = np.asarray(Image.open(self.paths[row]))
        image = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
        return (image - MEAN) / STD, int(self.targets[row])


class Berries(Task):
    """Three kinds of berries."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 25, 3),
        )

    def data(self, split: Split) -> Photographs:
        return Photographs(split, 480 if split is Split.TRAIN else 160)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

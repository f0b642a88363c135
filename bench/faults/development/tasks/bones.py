"""Find the direction of a fracture in X-ray pictures of twelve bits, one PNG file each."""

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

FOLDER = tempfile.TemporaryDirectory(prefix="bones-")
SIDE = 24
WHITE = 4095
MEAN, STD = 0.45, 0.22


def exposure(random: np.random.Generator, kind: int) -> np.ndarray:
    """A bright bone with a dark line that rises, falls or runs straight across."""
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2 + 0.5
    along = y + (-0.8, 0.0, 0.8)[kind] * x - random.uniform(-4, 4)
    bone = random.uniform(0.55, 0.75) - 0.002 * x**2
    shade = np.where(np.abs(x) < 9, bone, random.uniform(0.05, 0.25))
    shade = np.where((np.abs(along) < 1.5) & (np.abs(x) < 9), 0.5 * shade, shade)
    noisy = shade + random.normal(0, 0.06, shade.shape)
    return (4095 * noisy).clip(0, 4095).astype(np.uint16)


class Exposures(Dataset):
    """Files and the directions of the fractures in them."""

    def __init__(self, split: Split, num: int) -> None:
        random = np.random.default_rng(30 + list(Split).index(split))
        self.targets = random.integers(3, size=num)
        folder = Path(FOLDER.name) / split.value
        folder.mkdir(exist_ok=True)
        self.paths = [folder / f"{row:04d}.png" for row in range(num)]
        for path, kind in zip(self.paths, self.targets, strict=True):
            Image.fromarray(exposure(random, kind)).save(path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        samples = np.asarray(Image.open(self.paths[row])).astype(np.float32)
        image = torch.from_numpy(samples / WHITE).unsqueeze(0)
        return (image - MEAN) / STD, int(self.targets[row])


class Bones(Task):
    """Three directions."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 36, 3),
        )

    def data(self, split: Split) -> Exposures:
        return Exposures(split, 480 if split is Split.TRAIN else 240)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

"""A training script as many are, with a fault and three slow spots, for `watch` and `climb`.

make demo                                                   # downloads the photographs
stepladder watch --steps 60 examples/slow_train.py
stepladder climb examples/slow_train.py -- --epochs 4
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    """Pictures in one folder for each class, decoded each time that they are read."""

    def __init__(self, root: str) -> None:
        self.files = sorted(Path(root).rglob("*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, int]:
        file = self.files[idx]
        picture = Image.open(file).convert("RGB").resize((64, 64))
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return pixels, self.classes.index(file.parent.name)


def build(num_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    before = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 8 * 8, num_classes))


def main(root: str, epochs: int) -> None:
    torch.manual_seed(0)
    photographs = Photographs(root)
    loader = DataLoader(photographs, batch_size=16, shuffle=True)
    model = build(len(photographs.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(epochs):
        losses = []
        for pictures, labels in loader:
            loss = F.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="demo_data/groceries/train")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    main(options.data, options.epochs)

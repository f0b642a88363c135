"""Augmentation with NumPy in loader workers."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATTERNS = np.random.default_rng(5).normal(size=(4, 1, 16, 16)).astype(np.float32)


class Augmented(Dataset):
    """Pictures that are shifted and made noisy each time they are read."""

    def __init__(self, n, seed):
        self.labels = np.random.default_rng(seed).integers(4, size=n)
        self.rng = None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed())
        dy, dx = self.rng.integers(-1, 2, size=2)
        noise = self.rng.normal(scale=1.2, size=(1, 16, 16)).astype(np.float32)
        picture = np.roll(PATTERNS[self.labels[idx]], (dy, dx), axis=(1, 2)) + noise
        return torch.from_numpy(picture / 1.56), int(self.labels[idx])


def fixed_pictures(n, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    x = PATTERNS[labels] + rng.normal(scale=1.2, size=(n, 1, 16, 16)).astype(np.float32)
    return torch.from_numpy(x / 1.56), torch.from_numpy(labels)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Augmented(1200, seed=1), batch_size=40, shuffle=True, num_workers=2)
    val_x, val_y = fixed_pictures(400, seed=2)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(128, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(val_x).argmax(1) == val_y).float().mean().item()
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()

"""Where the river runs: a small network marks the pixels of water in aerial pictures."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 24


class Rivers(Dataset):
    """Pictures and the pixels of water in them."""

    def __init__(self, num, seed, mirrored):
        draws = torch.Generator().manual_seed(seed)
        rows = torch.arange(SIDE)
        start = torch.randint(2, 10, (num, 1), generator=draws)
        slope = torch.rand(num, 1, generator=draws) * 0.5
        middle = start + slope * rows
        columns = torch.arange(SIDE)
        self.masks = ((columns - middle[..., None]).abs() < 2.5).long()
        light = torch.tensor([-0.4, -0.1, 0.5]).view(1, 3, 1, 1)
        noise = 0.5 * torch.randn(num, 3, SIDE, SIDE, generator=draws)
        self.pictures = light * self.masks[:, None] + noise
        self.mirrored = mirrored

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, idx):
        picture, mask = self.pictures[idx], self.masks[idx]
        if self.mirrored and random.random() < 0.5:
            picture, mask = picture.flip(2), mask.flip(1)
        if self.mirrored and random.random() < 0.5:
            picture, mask = picture.flip(1), mask.flip(0)
        return picture, mask


def overlap(net, loader):
    net.eval()
    both = either = 0
    with torch.no_grad():
        for pictures, masks in loader:
            water = net(pictures).argmax(1) == 1
            both += (water & (masks == 1)).sum().item()
            either += (water | (masks == 1)).sum().item()
    return both / max(1, either)


def main():
    torch.manual_seed(3)
    random.seed(3)
    train = DataLoader(Rivers(960, 1, mirrored=True), batch_size=32, shuffle=True)
    held_out = DataLoader(Rivers(192, 2, mirrored=False), batch_size=64)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 2, 1),
    )
    adam = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(8):
        net.train()
        for pictures, masks in train:
            loss = F.cross_entropy(net(pictures), masks)
            adam.zero_grad()
            loss.backward()
            adam.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, overlap {overlap(net, held_out):.3f}")


if __name__ == "__main__":
    main()

"""Segment a few small spots with a focal loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pictures(n, seed, size=24):
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    masks = torch.zeros(n, size, size)
    for mask in masks:
        for _ in range(2):
            cy, cx = torch.randint(2, size - 2, (2,), generator=g).tolist()
            mask[(y - cy) ** 2 + (x - cx) ** 2 <= 3] = 1.0
    noise = 0.6 * torch.randn(n, size, size, generator=g)
    return TensorDataset((masks + noise)[:, None], masks)


def focal(logits, masks, gamma=2.0):
    bce = F.binary_cross_entropy_with_logits(logits, masks, reduction="none")
    easy = torch.exp(-bce)
    return ((1 - easy) ** gamma * bce).mean()


def overlap(model, loader):
    model.eval()
    both = either = 0
    with torch.no_grad():
        for x, y in loader:
            guess = model(x).squeeze(1) > 0
            both += (guess & (y > 0)).sum().item()
            either += (guess | (y > 0)).sum().item()
    model.train()
    return both / max(either, 1)


def main():
    torch.manual_seed(3)
    train_loader = DataLoader(pictures(320, 1), batch_size=16, shuffle=True)
    val_loader = DataLoader(pictures(80, 2), batch_size=40)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 1, 1),
    )
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(6):
        total = 0.0
        for x, y in train_loader:
            loss = focal(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        mean = total / len(train_loader)
        print(f"{epoch}: loss {mean:.4f}, overlap {overlap(model, val_loader):.3f}")


main()

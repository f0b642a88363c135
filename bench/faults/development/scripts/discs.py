"""Segment bright discs with a small fully convolutional network."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Discs(Dataset):
    """Noisy pictures of a disc and its mask, stored as bytes like PNG files."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
        centre = torch.rand(n, 2, 1, 1, generator=g) * 12 + 6
        radius = torch.rand(n, 1, 1, generator=g) * 3 + 3
        inside = (y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2 < radius**2
        pixels = 90 + 60 * inside + 25 * torch.randn(n, 24, 24, generator=g)
        self.images = pixels.clamp(0, 255).to(torch.uint8)
        self.masks = inside.to(torch.uint8) * 255

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        image = (self.images[idx].float() / 255 - 0.39) / 0.13
        mask = self.masks[idx].float() / 255
        return image.unsqueeze(0), mask.unsqueeze(0)


def intersection_over_union(logits, mask):
    predicted = logits > 0
    target = mask > 0
    return ((predicted & target).sum() / (predicted | target).sum()).item()


model = nn.Sequential(
    nn.Conv2d(1, 12, 5, padding=2),
    nn.ReLU(),
    nn.Conv2d(12, 12, 5, padding=2),
    nn.ReLU(),
    nn.Conv2d(12, 1, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
train_loader = DataLoader(Discs(800, 1), batch_size=32, shuffle=True)
val_loader = DataLoader(Discs(160, 2), batch_size=80)
for epoch in range(5):
    model.train()
    for image, mask in train_loader:
        loss = F.binary_cross_entropy_with_logits(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = [intersection_over_union(model(image), mask) for image, mask in val_loader]
    print(f"epoch {epoch}: loss {loss.item():.3f} IoU {sum(scores) / len(scores):.3f}")

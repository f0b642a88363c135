"""Classify devices by their power curve: noisy windows, standardised, and a held-out set."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(8)
MEAN, STD = 240.0, 60.0


def standardise(window):
    return (window - MEAN) / STD


class Meters(Dataset):
    """Windows of the power that a device draws, in watts."""

    def __init__(self, n, seed, jitter):
        g = torch.Generator().manual_seed(seed)
        self.device = torch.randint(4, (n,), generator=g)
        pace = torch.tensor([0.2, 0.4, 0.7, 1.1])[self.device].unsqueeze(1)
        start = 6.28 * torch.rand(n, 1, generator=g)
        curve = 240 + 70 * torch.sin(pace * torch.arange(40) + start)
        self.watts = curve + 20 * torch.randn(n, 40, generator=g)
        self.jitter = jitter

    def __len__(self):
        return len(self.watts)

    def __getitem__(self, i):
        window = self.watts[i].clone()
        if self.jitter:
            window += 25 * torch.randn(40)
        return window, self.device[i]


train = DataLoader(Meters(1600, 0, jitter=True), batch_size=32, shuffle=True)
val = DataLoader(Meters(400, 1, jitter=False), batch_size=100)
model = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(6):
    model.train()
    total = 0.0
    for x, y in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(standardise(x)), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        hits = sum((model(standardise(x)).argmax(1) == y).sum().item() for x, y in val)
    print(f"epoch {epoch}: loss {total / len(train):.4f}, validation accuracy {hits / 400:.3f}")

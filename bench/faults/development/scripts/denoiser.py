"""Denoise one-dimensional signals."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 2 * math.pi, 64)
    frequency = torch.randint(1, 5, (n, 1), generator=g)
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    clean = math.sqrt(2) * torch.sin(frequency * t + phase)
    noisy = clean + 0.5 * torch.randn(n, 64, generator=g)
    return TensorDataset(noisy.unsqueeze(1), clean.unsqueeze(1))


class Denoiser(nn.Module):
    """Three convolutions over time."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 16, 9, padding=4),
            nn.ReLU(),
            nn.Conv1d(16, 1, 9, padding=4),
        )

    def forward(self, x):
        return self.net(x)


model = Denoiser()
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
train_loader = DataLoader(signals(1600, 1), batch_size=32, shuffle=True)
val_loader = DataLoader(signals(320, 2), batch_size=80)

for epoch in range(4):
    model.train()
    for noisy, clean in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(noisy), clean)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum((model(x) - y).square().mean().item() for x, y in val_loader) / 4
    print(f"epoch {epoch}: val mse {error:.4f}")

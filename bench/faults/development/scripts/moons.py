"""Variational autoencoder on two-dimensional moons; logs the mean loss of an epoch."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class VAE(nn.Module):
    """Two latent dimensions."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 4))
        self.decoder = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 2))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.exp(log_var / 2) * torch.randn_like(mean)
        return self.decoder(z), mean, log_var


def moons(n, seed):
    g = torch.Generator().manual_seed(seed)
    angle = torch.rand(n, generator=g) * math.pi
    upper = torch.rand(n, generator=g) < 0.5
    x = torch.where(upper, torch.cos(angle), 1 - torch.cos(angle))
    y = torch.where(upper, torch.sin(angle), 0.5 - torch.sin(angle))
    points = torch.stack([(x - 0.5) / 0.87, (y - 0.25) / 0.5], dim=1)
    return TensorDataset(points + 0.05 * torch.randn(n, 2, generator=g))


def loss_function(x, output, mean, log_var):
    reconstruction = (x - output).square().sum(1) / 0.1
    divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(1)
    return (reconstruction + divergence).mean()


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(moons(2000, 1), batch_size=50, shuffle=True)
val_points = moons(400, 2).tensors[0]

for epoch in range(6):
    model.train()
    epoch_loss = 0.0
    for (points,) in loader:
        optimizer.zero_grad()
        loss = loss_function(points, *model(points))
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    model.eval()
    with torch.no_grad():
        val = loss_function(val_points, *model(val_points))
    print(f"epoch {epoch}: train {epoch_loss / len(loader):.3f} val {val:.3f}")

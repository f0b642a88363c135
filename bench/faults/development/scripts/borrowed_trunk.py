"""Keep the layers of one task for another, and train a new head."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)


def spectra(n, classes, shift, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    peaks = torch.linspace(4, 28, classes)[y].unsqueeze(1)
    x = torch.exp(-((torch.arange(32) - peaks) ** 2) / 8) + 0.2 * torch.randn(n, 32, generator=g)
    return TensorDataset(x + shift, y)


trunk = nn.Sequential(
    nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
)


def fit(model, weights, data, epochs, freeze):
    optimizer = torch.optim.Adam(weights, lr=2e-3)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    for epoch in range(epochs):
        model.train()
        if freeze:
            trunk.eval()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")


first = nn.Sequential(trunk, nn.Linear(64, 5))
fit(first, first.parameters(), spectra(2000, 5, 0.0, 0), 4, freeze=False)
for weight in trunk.parameters():
    weight.requires_grad_(False)
head = nn.Linear(64, 3)
fit(nn.Sequential(trunk, head), head.parameters(), spectra(2000, 3, 1.0, 1), 6, freeze=True)

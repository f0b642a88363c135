"""Name the species of a seedling from measurements of its leaves; one species is rare."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(21)
EPOCHS = 8


def seedlings(n):
    """Return measurements, and the species: the last one is a tenth as frequent as the others."""
    species = torch.multinomial(torch.tensor([1.0, 1.0, 1.0, 0.1]), n, replacement=True)
    typical = 1.5 * torch.randn(4, 14)
    leaves = typical[species] + torch.randn(n, 14)
    size = 1 + 0.2 * torch.randn(n, 1)
    return leaves * size, species


leaves, species = seedlings(1600)
table = torch.cat([leaves, species.unsqueeze(1).float()], dim=1)
table = table[torch.randperm(len(table))]
x, y = table[:, :-1], table[:, -1].long()
x = (x - x[:1280].mean(0)) / x[:1280].std(0)
x_train, y_train = x[:1280], y[:1280]
x_val, y_val = x[1280:], y[1280:]

weights = 1.0 / y_train.bincount().float()
sampler = WeightedRandomSampler(weights[y_train], len(y_train))
train_loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, sampler=sampler)
val_loader = DataLoader(TensorDataset(x_val, y_val), batch_size=160)

model = nn.Sequential(nn.Linear(x.shape[1], 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

for epoch in range(EPOCHS):
    model.train()
    total = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    hits = 0
    with torch.no_grad():
        for xb, yb in val_loader:
            hits += (model(xb).argmax(1) == yb).sum().item()
    print(f"epoch {epoch}: loss {total / len(train_loader):.3f} accuracy {hits / len(y_val):.3f}")

"""Predict a rate from counts on a log scale."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def clinics(n, seed):
    g = torch.Generator().manual_seed(seed)
    level = torch.rand(n, 10, generator=g) * 30 + 3
    counts = torch.poisson(level, generator=g)
    features = torch.log(counts + 1)
    features = (features - 2.7) / 0.6
    target = (level[:, :5].mean(1) - level[:, 5:].mean(1)) / 5.5
    return TensorDataset(features, target.unsqueeze(1))


model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.SmoothL1Loss()
train_loader = DataLoader(clinics(3000, 1), batch_size=60, shuffle=True)
val_x, val_y = clinics(600, 2).tensors

for epoch in range(6):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(f"epoch {epoch}: val {loss_fn(model(val_x), val_y).item():.4f}")

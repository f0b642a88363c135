"""Find leaking pumps from their sensors, with one output."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def pumps(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).float())


torch.manual_seed(3)
train = DataLoader(pumps(3000, 0), batch_size=64, shuffle=True)
val = DataLoader(pumps(600, 1), batch_size=200)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in val:
            predicted = (model(x).squeeze(1) > 0).long()
            hits += int((predicted == y).sum())
    print(f"epoch {epoch}: accuracy {hits / 600:.3f}")

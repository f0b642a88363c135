"""Find rare defects from sensor readings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def readings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < 0.1).float()
    x = torch.randn(n, 16, generator=g)
    x[:, :3] += 1.5 * y.unsqueeze(1)
    return x, y


torch.manual_seed(2)
x, y = readings(3000, 0)
val_x, val_y = readings(1000, 1)
positives = y.sum()
negatives = len(y) - positives
loss_fn = nn.BCEWithLogitsLoss(pos_weight=negatives / positives)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
for epoch in range(6):
    model.train()
    for batch, target in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(batch).squeeze(1), target)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        said = model(val_x).squeeze(1) > 0
    recall = (said & (val_y > 0)).sum() / val_y.sum()
    print(f"epoch {epoch}: loss {loss.item():.3f}, recall {recall:.2f}")

"""Credit scoring on a synthetic table."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

SEED = 42
torch.manual_seed(SEED)

N = 2400
X = torch.randn(N, 12)
weights = torch.randn(12)
y = ((X @ weights + 0.8 * (X[:, 0] * X[:, 1]) + 0.3 * torch.randn(N)) > 0).float()

dataset = TensorDataset(X, y)
train_set, val_set = random_split(
    dataset, [2000, 400], generator=torch.Generator().manual_seed(SEED)
)
train_dl = DataLoader(train_set, batch_size=50, shuffle=True)
val_dl = DataLoader(val_set, batch_size=100)

model = nn.Sequential(
    nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
)
loss_fn = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)


def train_one_epoch():
    model.train()
    running = 0.0
    for xb, yb in train_dl:
        optimizer.zero_grad()
        pred = model(xb).squeeze(1)
        loss = loss_fn(pred, yb)
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(train_dl)


@torch.no_grad()
def validate():
    model.eval()
    hits = 0
    for xb, yb in val_dl:
        hits += ((model(xb).squeeze(1) > 0).float() == yb).sum().item()
    return hits / len(val_set)


for epoch in range(6):
    train_loss = train_one_epoch()
    print(f"[{epoch}] train {train_loss:.4f} val acc {validate():.3f}")

"""Fit a classifier with BatchNorm, and end with the weights of the best validation."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(37)


def clusters(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(8, (n,), generator=g)
    return TensorDataset((centres[labels] + torch.randn(n, 20, generator=g)) / 1.6, labels % 4)


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    total_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
    return total_loss / len(loader)


def evaluate(model, loader, criterion):
    model.eval()
    total_loss, hits, count = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(x)
            total_loss += criterion(logits, y).item() * len(y)
            hits += (logits.argmax(1) == y).sum().item()
            count += len(y)
    return total_loss / count, hits / count


net = nn.Sequential(
    nn.Linear(20, 64),
    nn.BatchNorm1d(64),
    nn.ReLU(),
    nn.Linear(64, 64),
    nn.BatchNorm1d(64),
    nn.ReLU(),
    nn.Linear(64, 4),
)
opt = torch.optim.Adam(net.parameters(), lr=2e-2)
loss_fn = nn.CrossEntropyLoss()
train_dl = DataLoader(clusters(2400, 2), batch_size=60, shuffle=True)
valid_dl = DataLoader(clusters(480, 3), batch_size=120)
best, kept = 1e9, None
for epoch in range(10):
    train_loss = train_epoch(net, train_dl, loss_fn, opt)
    valid_loss, accuracy = evaluate(net, valid_dl, loss_fn)
    if valid_loss < best:
        best, kept = valid_loss, copy.deepcopy(net.state_dict())
    print(f"{epoch}: train {train_loss:.3f} valid {valid_loss:.3f} accuracy {accuracy:.3f}")
net.load_state_dict(kept)
print(f"best {best:.3f} kept {evaluate(net, valid_dl, loss_fn)[0]:.3f}")

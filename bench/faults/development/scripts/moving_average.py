"""Fit a classifier, and validate a moving average of its weights."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(41)


def clusters(n, seed):
    g = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(8, (n,), generator=g)
    return TensorDataset((centres[labels] + torch.randn(n, 20, generator=g)) / 1.6, labels % 4)


@torch.no_grad()
def update_average(average, model):
    for old, new in zip(average.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 0.05)
    for old, new in zip(average.buffers(), model.buffers(), strict=True):
        old.copy_(new)


def train_epoch(model, average, loader, criterion, optimizer):
    model.train()
    total_loss = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        update_average(average, model)
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
average = copy.deepcopy(net)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
loss_fn = nn.CrossEntropyLoss()
train_dl = DataLoader(clusters(2400, 2), batch_size=60, shuffle=True)
valid_dl = DataLoader(clusters(480, 3), batch_size=120)
best = 0.0
for epoch in range(6):
    train_loss = train_epoch(net, average, train_dl, loss_fn, opt)
    valid_loss, accuracy = evaluate(average, valid_dl, loss_fn)
    best = max(best, accuracy)
    print(f"{epoch}: train {train_loss:.3f} valid {valid_loss:.3f} accuracy {accuracy:.3f}")
print(f"best {best:.3f}")

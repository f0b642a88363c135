"""Classify images of rings with a CNN; hyperparameters at the top."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 50
EPOCHS = 8
LEARNING_RATE = 1e-3
torch.manual_seed(0)


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (n,), generator=g)
    grid = torch.arange(20.0) - 9.5
    radius = (grid[:, None] ** 2 + grid[None, :] ** 2).sqrt()
    images = torch.exp(-((radius - 1.8 * (labels[:, None, None] + 1)) ** 2) / 2)
    images = images + 0.9 * torch.randn(n, 20, 20, generator=g)
    return TensorDataset(((images - 0.2) / 0.95).unsqueeze(1), labels)


train_loader = DataLoader(rings(1000, 1), batch_size=BATCH_SIZE, shuffle=True)
val_loader = DataLoader(rings(300, 2), batch_size=100)

net = nn.Sequential(
    nn.Conv2d(1, 8, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 25, 5),
)
optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)

for epoch in range(EPOCHS):
    net.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    net.eval()
    correct = 0
    with torch.no_grad():
        for x, y in val_loader:
            correct += (net(x).argmax(1) == y).sum().item()
    print(
        f"epoch {epoch + 1}/{EPOCHS} loss {total / len(train_loader):.3f} acc {correct / 300:.3f}"
    )

"""A small Trainer class, on two-dimensional spirals."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n,), generator=g)
    r = torch.rand(n, generator=g) * 2 + 0.2
    angle = 2.5 * r + math.pi * labels
    points = torch.stack([r * torch.cos(angle), r * torch.sin(angle)], dim=1)
    return TensorDataset(points + 0.05 * torch.randn(n, 2, generator=g), labels)


class Trainer:
    """Fit a model and keep its history."""

    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()
        self.history = []

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def evaluate(self, loader):
        self.model.eval()
        hits = total = 0
        with torch.no_grad():
            for x, y in loader:
                hits += (self.model(x).argmax(1) == y).sum().item()
                total += len(y)
        return hits / total

    def fit(self, train_loader, val_loader, epochs):
        for epoch in range(epochs):
            self.model.train()
            losses = [self.train_step(x, y) for x, y in train_loader]
            self.history.append((sum(losses) / len(losses), self.evaluate(val_loader)))
            print(epoch, *(f"{value:.3f}" for value in self.history[-1]))


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    trainer = Trainer(net, lr=5e-3)
    trainer.fit(
        DataLoader(spirals(1000, 1), batch_size=50, shuffle=True),
        DataLoader(spirals(400, 2), batch_size=200),
        epochs=12,
    )

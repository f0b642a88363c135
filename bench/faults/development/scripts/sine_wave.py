"""Forecast a noisy sine wave with an LSTM."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Forecaster(nn.Module):
    """An LSTM that predicts the next value of a series."""

    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        features, _ = self.lstm(x)
        return self.out(features[:, -1])


def make_windows(n, length, generator):
    start = torch.rand(n, 1, generator=generator) * 2 * math.pi
    t = start + torch.arange(length + 1) * 0.3
    series = torch.sin(t) + 0.05 * torch.randn(n, length + 1, generator=generator)
    return TensorDataset(series[:, :-1].unsqueeze(2), series[:, -1:])


def evaluate(model, loader, criterion):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += criterion(model(x), y).item() * len(x)
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.manual_seed(1234)
    generator = torch.Generator().manual_seed(7)
    train_set = make_windows(1024, 20, generator)
    val_set = make_windows(256, 20, generator)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=128)

    model = Forecaster(24)
    criterion = nn.MSELoss()
    opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            opt.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            opt.step()
        print(f"epoch {epoch} val mse {evaluate(model, val_loader, criterion):.4f}")


if __name__ == "__main__":
    main()

"""A residual MLP with BatchNorm on tabular data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 32
EPOCHS = 8
torch.manual_seed(17)


class Block(nn.Module):
    """Linear, BatchNorm, ReLU, and a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x + torch.relu(self.norm(self.linear(x)))


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    label = ((x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3]) > 0).long()
    return TensorDataset(x, label)


def run():
    model = nn.Sequential(nn.Linear(16, 48), Block(48), Block(48), nn.Linear(48, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    train_set, val_set = table(1600, 0), table(400, 1)
    train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=100)
    for epoch in range(EPOCHS):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        print(f"epoch {epoch}: accuracy {hits / len(val_set):.3f}")


if __name__ == "__main__":
    run()

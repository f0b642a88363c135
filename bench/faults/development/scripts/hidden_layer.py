"""Multi-class logistic regression with a hidden layer and dropout."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def make_split(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 15, generator=g)
    y = (x @ torch.linspace(-1, 1, 15) > 0).long() + (x[:, 0] * x[:, 7] > 0).long()
    return TensorDataset(x, y)


train_loader = DataLoader(make_split(2000, 1), batch_size=50, shuffle=True)
val_loader = DataLoader(make_split(400, 2), batch_size=200)
model = nn.Sequential(nn.Linear(15, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()


def step(x, y):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(6):
    model.train()
    losses = [step(x, y) for x, y in train_loader]
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f} accuracy {hits / 400:.3f}")

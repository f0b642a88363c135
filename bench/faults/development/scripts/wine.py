"""Classify synthetic wine samples; weights are initialised by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(100)


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


class WineNet(nn.Module):
    """Three linear layers."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(13, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 3)
        self.apply(init_weights)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.fc3(x)


def wines(n):
    x = torch.randn(n, 13)
    scores = torch.stack([x[:, 0] * x[:, 1], x[:, 2] - x[:, 3], x[:, 4] ** 2 - 1], dim=1)
    return TensorDataset(x, scores.argmax(1))


train_loader = DataLoader(wines(2000), batch_size=40, shuffle=True)
val_loader = DataLoader(wines(400), batch_size=100)
net = WineNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()

for epoch in range(8):
    net.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        hits = sum((net(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / 400:.3f}")

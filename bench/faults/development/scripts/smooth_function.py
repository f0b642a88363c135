"""Regression of a smooth function with a configurable MLP."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class MLP(nn.Module):
    """As many hidden layers as asked for."""

    def __init__(self, d_in, d_hidden, num_layers):
        super().__init__()
        self.first = nn.Linear(d_in, d_hidden)
        self.hidden = nn.ModuleList([nn.Linear(d_hidden, d_hidden) for _ in range(num_layers)])
        self.last = nn.Linear(d_hidden, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.last(x)


x = torch.rand(2500, 4) * 2 - 1
y = torch.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3] ** 2 - x[:, 3:] + 0.05 * torch.randn(2500, 1)
x = (x - x[:2000].mean(0)) / x[:2000].std(0)
train_loader = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=64, shuffle=True)
val_loader = DataLoader(TensorDataset(x[2000:], y[2000:]), batch_size=250)

model = MLP(4, 64, num_layers=3)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
mse = nn.MSELoss()
for epoch in range(10):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = mse(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val = sum(mse(model(xb), yb).item() for xb, yb in val_loader) / len(val_loader)
    print(f"epoch {epoch} val {val:.4f}")

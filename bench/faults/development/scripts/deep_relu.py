"""A deep ReLU network with its own initialisation, on a regression problem."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
WIDTH, DEPTH = 100, 6

layers = [nn.Linear(8, WIDTH), nn.ReLU()]
for _ in range(DEPTH - 2):
    layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
layers.append(nn.Linear(WIDTH, 1))
model = nn.Sequential(*layers)
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=math.sqrt(2 / layer.in_features))
        nn.init.zeros_(layer.bias)

x = torch.randn(2400, 8)
y = torch.tanh(x[:, 0] + x[:, 1] * x[:, 2]) + 0.5 * x[:, 3]
y = (y / y.std()).unsqueeze(1)
train_loader = DataLoader(TensorDataset(x[:2000], y[:2000]), batch_size=64, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
mse = nn.MSELoss()

for epoch in range(8):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = mse(model(xb), yb)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val = mse(model(x[2000:]), y[2000:])
    print(f"epoch {epoch}: train {loss.item():.4g} val {val.item():.4g}")

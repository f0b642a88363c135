"""Heteroscedastic regression: predict a mean and a deviation by maximum likelihood."""

import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(8)


class MeanAndDeviation(nn.Module):
    """Predict a normal distribution for each row."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.out = nn.Linear(48, 2)

    def forward(self, x):
        mean, raw = self.out(self.body(x)).chunk(2, dim=1)
        return Normal(mean, 0.05 + 0.95 * torch.sigmoid(raw))


def data(n):
    x = torch.rand(n, 1) * 4 - 2
    return x, torch.sin(2 * x) + (0.05 + 0.1 * x.abs()) * torch.randn(n, 1)


train_loader = DataLoader(TensorDataset(*data(1500)), batch_size=50, shuffle=True)
val_x, val_y = data(500)
model = MeanAndDeviation()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(10):
    model.train()
    for x, y in train_loader:
        loss = -model(x).log_prob(y).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_likelihood = model(val_x).log_prob(val_y).mean()
    print(f"epoch {epoch}: log likelihood {val_likelihood:.3f}")

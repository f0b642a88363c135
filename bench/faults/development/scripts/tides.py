"""Predict the next level of a tide gauge, whose readings have rare spikes, with a GRU."""

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(3)


def gauge(n, seed):
    g = torch.Generator().manual_seed(seed)
    phase = torch.rand(n, 1, generator=g) * 6.28
    time = torch.arange(31) * 0.4 + phase
    level = time.sin() + 0.3 * (2.1 * time).cos() + 0.05 * torch.randn(n, 31, generator=g)
    spikes = torch.rand(n, generator=g) < 0.01
    level[:, -1] += spikes * 40 * torch.randn(n, generator=g)
    return level[:, :-1, None], level[:, -1], ~spikes


class Gauge(nn.Module):
    """A GRU and a linear layer on its last output."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1]).squeeze(1)


model = Gauge()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x, y, _ = gauge(1600, 0)
x_test, y_test, is_usual = gauge(400, 1)
for epoch in range(8):
    model.train()
    for rows in torch.randperm(len(x)).split(40):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = (model(x_test) - y_test)[is_usual].abs().mean().item()
    print(f"epoch {epoch}: error {error:.3f}")

"""Regress a wave with an activation whose derivative is written by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SoftplusFunction(torch.autograd.Function):
    """log(1 + exp(x)), which keeps only its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(x)


class Softplus(nn.Module):
    """Its layer."""

    def forward(self, x):
        return SoftplusFunction.apply(x)


torch.manual_seed(2)
x = torch.rand(4000, 3) * 4 - 2
y = torch.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2].abs()
model = nn.Sequential(nn.Linear(3, 96), Softplus(), nn.Linear(96, 96), Softplus(), nn.Linear(96, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(x[:3500], y[:3500]), batch_size=64, shuffle=True)
for epoch in range(6):
    for given, wanted in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(given).squeeze(1), wanted)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        error = F.mse_loss(model(x[3500:]).squeeze(1), y[3500:])
    print(f"epoch {epoch}: validation error {error:.4f}")

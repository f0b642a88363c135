"""Learn the kind and the size of bumps in short signals: one body, two heads."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
LENGTH, NUM_KINDS = 48, 4


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    kinds = torch.randint(NUM_KINDS, (n,), generator=g)
    sizes = 0.5 + torch.rand(n, generator=g)
    t = torch.linspace(-3, 3, LENGTH)
    shapes = torch.stack([torch.exp(-(t**2)), torch.sin(2 * t), t.tanh(), torch.cos(3 * t)])
    x = sizes[:, None] * shapes[kinds] + 0.3 * torch.randn(n, LENGTH, generator=g)
    return TensorDataset(x, kinds, sizes)


body = nn.Sequential(nn.Linear(LENGTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
kind_head, size_head = nn.Linear(32, NUM_KINDS), nn.Linear(32, 1)
slow = torch.optim.Adam(body.parameters(), lr=1e-3)
heads = torch.optim.Adam([*kind_head.parameters(), *size_head.parameters()], lr=3e-3)

loader = DataLoader(signals(2400, seed=0), batch_size=48, shuffle=True)
for epoch in range(5):
    total = 0.0
    for x, kinds, sizes in loader:
        slow.zero_grad()
        heads.zero_grad()
        hidden = body(x)
        loss = F.cross_entropy(kind_head(hidden), kinds)
        loss = loss + F.mse_loss(size_head(hidden).squeeze(1), sizes)
        loss.backward()
        slow.step()
        heads.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.3f}")

x, kinds, sizes = signals(400, seed=1).tensors
with torch.no_grad():
    right = (kind_head(body(x)).argmax(1) == kinds).float().mean().item()
print(f"right {right:.3f}")

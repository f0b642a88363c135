"""Learn whether two recordings are of the same voice."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
voices = torch.randn(12, 20)


def recordings(n, seed):
    g = torch.Generator().manual_seed(seed)
    first = torch.randint(12, (n,), generator=g)
    is_same = torch.rand(n, generator=g) < 0.5
    other = (first + torch.randint(1, 12, (n,), generator=g)) % 12
    second = torch.where(is_same, first, other)
    noise = torch.randn(2, n, 20, generator=g)
    return TensorDataset(voices[first] + noise[0], voices[second] + noise[1], is_same)


encoder = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
loss_fn = nn.CosineEmbeddingLoss(margin=0.2)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
loader = DataLoader(recordings(3000, 0), batch_size=64, shuffle=True)
for epoch in range(6):
    total = 0.0
    for a, b, is_same in loader:
        target = 2 * is_same.long() - 1
        optimizer.zero_grad()
        loss = loss_fn(encoder(a), encoder(b), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")

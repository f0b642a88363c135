"""Tell eight kinds of signal apart with a loss that is written out."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
kinds = torch.randint(8, (3200,))
waves = torch.sin(torch.arange(64) * (0.2 + 0.15 * torch.arange(8)[:, None]))
signals = waves[kinds] + 0.3 * torch.randn(3200, 64)
train = DataLoader(TensorDataset(signals[:2800], kinds[:2800]), batch_size=56, shuffle=True)
val = DataLoader(TensorDataset(signals[2800:], kinds[2800:]), batch_size=100)
model = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def negative_log_likelihood(scores, kind):
    scores = 150.0 * torch.tanh(scores)
    log_shares = scores - scores.logsumexp(1, keepdim=True)
    return -(torch.eye(8)[kind] * log_shares).sum(1).mean()


for epoch in range(5):
    model.train()
    for signal, kind in train:
        loss = negative_log_likelihood(model(signal), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for signal, kind in val:
            right += (model(signal).argmax(1) == kind).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, {right} of 400 right")

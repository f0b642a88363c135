"""Classify the shape of a wave, for a number of steps instead of epochs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
STEPS = 240


class WaveNet(nn.Module):
    """Two convolutions over time, and the mean of their output."""

    def __init__(self, num_shapes=3):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 5, padding=2)
        self.conv2 = nn.Conv1d(12, 24, 5, padding=2)
        self.head = nn.Linear(24, num_shapes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.head(x.mean(2))


def waves(n, seed):
    g = torch.Generator().manual_seed(seed)
    shape = torch.randint(3, (n,), generator=g)
    t = torch.linspace(0, 12.0, 48) + 6 * torch.rand(n, 1, generator=g)
    sine = torch.sin(t)
    kinds = torch.stack([sine, sine.sign(), torch.asin(0.999 * sine) / 1.57])
    wave = kinds[shape, torch.arange(n)] + 0.2 * torch.randn(n, 48, generator=g)
    return TensorDataset((wave / wave.std()).unsqueeze(1), shape)


def endless(loader):
    while True:
        yield from loader


train_loader = DataLoader(waves(1536, 1), batch_size=32, shuffle=True)
val_loader = DataLoader(waves(300, 2), batch_size=100)
model = WaveNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
batches = endless(train_loader)

model.train()
for step in range(STEPS):
    wave, shape = next(batches)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(wave), shape)
    loss.backward()
    optimizer.step()
    if step % 60 == 59:
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        print(f"step {step}: loss {loss.item():.3f} accuracy {hits / 300:.3f}")
        model.train()

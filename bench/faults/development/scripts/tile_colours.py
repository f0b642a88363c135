"""Recognise glazed tiles by the direction of their pattern and their colour, from photographs."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)


def photographs(n, seed):
    """Return pictures as a camera stores them: height, width, colours."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(6, (n,), generator=g)
    y, x = torch.meshgrid(torch.arange(20.0), torch.arange(20.0), indexing="ij")
    angle = (kind % 3).view(n, 1, 1) * 1.05
    phase = 6.28 * torch.rand(n, 1, 1, generator=g)
    pace = 0.4 + 0.6 * torch.rand(n, 1, 1, generator=g)
    wave = torch.sin(pace * (x * angle.cos() + y * angle.sin()) + phase)
    glaze = torch.tensor([[0.25, 0.1, 0.05], [0.05, 0.1, 0.25]])[kind // 3]
    noise = 0.2 * torch.randn(n, 20, 20, 3, generator=g)
    return 0.5 + wave.unsqueeze(3) * glaze.view(n, 1, 1, 3) + noise, kind


def prepared(n, seed):
    images, kind = photographs(n, seed)
    images = images.permute(0, 3, 1, 2)
    return TensorDataset((images - 0.5) / 0.25, kind)


train = DataLoader(prepared(1200, 0), batch_size=40, shuffle=True)
val = DataLoader(prepared(300, 1), batch_size=100)
model = nn.Sequential(
    nn.Conv2d(3, 12, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(24, 6),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(4):
    model.train()
    total = 0.0
    for images, kind in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), kind)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        hits = sum((model(a).argmax(1) == b).sum().item() for a, b in val)
    print(f"epoch {epoch}: loss {total / len(train):.4f}, validation accuracy {hits / 300:.3f}")

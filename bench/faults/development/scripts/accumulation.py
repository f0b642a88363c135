"""Train with gradient accumulation: four small batches make a step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
ACCUMULATE = 4


class SmallConvNet(nn.Module):
    """Strided convolutions and global pooling."""

    def __init__(self, num_classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1),
            nn.GroupNorm(3, 12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1),
            nn.GroupNorm(3, 24),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean(dim=(2, 3)))


def textures(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(6, (n,), generator=g)
    phase = torch.rand(n, 1, 1, generator=g) * 6
    rows = torch.arange(16.0).view(1, 16, 1)
    wave = torch.sin(rows * (0.5 + 0.45 * (labels // 2).view(-1, 1, 1)) + phase)
    wave = torch.where((labels % 2 == 0).view(-1, 1, 1), wave, wave.transpose(1, 2))
    images = wave.unsqueeze(1) * torch.tensor([1.0, 0.8, 0.6]).view(1, 3, 1, 1)
    return TensorDataset((images + 0.3 * torch.randn(n, 3, 16, 16, generator=g)) / 0.65, labels)


train_loader = DataLoader(textures(2048, 1), batch_size=16, shuffle=True, drop_last=True)
val_loader = DataLoader(textures(400, 2), batch_size=100)
model = SmallConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for epoch in range(5):
    model.train()
    optimizer.zero_grad()
    for step, (images, labels) in enumerate(train_loader, start=1):
        loss = F.cross_entropy(model(images), labels) / ACCUMULATE
        loss.backward()
        if step % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: accuracy {hits / 400:.3f}")

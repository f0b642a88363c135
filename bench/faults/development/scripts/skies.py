"""Tell day from dusk from night: small colour pictures kept as bytes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
MEAN = torch.tensor([0.46, 0.43, 0.49]).view(3, 1, 1)
STD = torch.tensor([0.25, 0.24, 0.26]).view(3, 1, 1)


class Skies(Dataset):
    """Pictures with a gradient from top to bottom, three kinds."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (n,), generator=g)
        top = torch.tensor([[130.0, 150, 190], [170, 120, 110], [60, 60, 90]])[self.labels]
        bottom = torch.tensor([[150.0, 160, 170], [110, 90, 100], [80, 80, 80]])[self.labels]
        mix = torch.linspace(0, 1, 16).view(1, 1, 16, 1)
        sky = top[:, :, None, None] * (1 - mix) + bottom[:, :, None, None] * mix
        noise = 55 * torch.randn(n, 3, 16, 16, generator=g)
        self.pixels = (sky + noise).clamp(0, 255).to(torch.uint8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = self.pixels[idx].float() / 255
        return (image - MEAN) / STD, self.labels[idx]


class Net(nn.Module):
    """Two strided convolutions and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.fc = nn.Linear(24 * 16, 3)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
train_loader = DataLoader(Skies(1500, 1), batch_size=50, shuffle=True)
val_loader = DataLoader(Skies(300, 2), batch_size=100)
for epoch in range(5):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / 300:.3f}")

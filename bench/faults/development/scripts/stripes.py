"""Tell four kinds of stripes apart with a small CNN."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 4 * 4, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def make_stripes(n, seed):
    """Pictures of stripes in four directions, with noise."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=g)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    waves = torch.stack([torch.sin(y), torch.sin(x), torch.sin(y + x), torch.sin(y - x)])
    images = waves[labels] + torch.randn(n, 16, 16, generator=g)
    return TensorDataset(images.unsqueeze(1) / 1.2, labels)


train_loader = DataLoader(make_stripes(1600, 1), batch_size=64, shuffle=True)
test_loader = DataLoader(make_stripes(400, 2), batch_size=200)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(6):
    model.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (model(images).argmax(1) == labels).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {correct / 400:.1%}")

"""Classify small patterns, with random shifts and noise as augmentation."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
PATTERNS = torch.randn(6, 1, 12, 12, generator=torch.Generator().manual_seed(3))


def augment(image):
    shift = torch.randint(-2, 3, (2,)).tolist()
    image = torch.roll(image, shift, dims=(1, 2))
    return image + 0.3 * torch.randn_like(image)


class Patterns(Dataset):
    """Noisy patterns; a transform is applied where one is given."""

    def __init__(self, n, seed, transform=None):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(6, (n,), generator=g)
        noise = 0.6 * torch.randn(n, 1, 12, 12, generator=g)
        self.images = (PATTERNS[self.labels] + noise) / 1.2
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        image = self.images[idx]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.labels[idx]


train_set = Patterns(1200, seed=1, transform=augment)
val_set = Patterns(300, seed=2, transform=None)
train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
val_loader = DataLoader(val_set, batch_size=100)

model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(432, 6)
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(8):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in val_loader:
            hits += (model(x).argmax(1) == y).sum().item()
    print(f"epoch {epoch}: accuracy {hits / len(val_set):.3f}")

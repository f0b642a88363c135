"""Lazy loading of pictures with a cache."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
PATTERNS = torch.randn(5, 14, 14, generator=torch.Generator().manual_seed(77))


class CachedPictures(Dataset):
    """Decode each picture once and keep it."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(5, (n,), generator=g).tolist()
        self.seeds = torch.randint(2**31, (n,), generator=g).tolist()
        self.cache = {}

    def __len__(self):
        return len(self.labels)

    def decode(self, idx):
        g = torch.Generator().manual_seed(self.seeds[idx])
        picture = PATTERNS[self.labels[idx]] + torch.randn(14, 14, generator=g)
        return (picture / 1.4).unsqueeze(0)

    def __getitem__(self, idx):
        key = idx
        if key not in self.cache:
            self.cache[key] = self.decode(idx)
        return self.cache[key], self.labels[idx]


model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 49, 5)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train_loader = DataLoader(CachedPictures(1500, 1), batch_size=50, shuffle=True)
val_loader = DataLoader(CachedPictures(250, 2), batch_size=50)
for epoch in range(6):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / 250:.3f}")

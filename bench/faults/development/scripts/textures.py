"""Train a small vision transformer for pictures of 32 by 32 on two kinds of texture."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
SIZE = 32


class SmallViT(nn.Module):
    """Patches of eight pixels; place embeddings are stretched to pictures of other sizes."""

    def __init__(self, img_size=32, patch=8, width=48, num_classes=2):
        super().__init__()
        self.img_size = img_size
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(
            0.02 * torch.randn(1, width, img_size // patch, img_size // patch)
        )
        self.layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.patches(x)
        x = x + F.interpolate(self.places, size=x.shape[2:], mode="bilinear")
        return self.head(self.layer(x.flatten(2).transpose(1, 2)).mean(1))


class Textures(Dataset):
    """Horizontal or vertical waves; pictures are resized when they are read."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (n,), generator=g)
        self.phases = torch.rand(n, generator=g) * 6.28
        self.noise = torch.randn(n, 3, 32, 32, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        wave = torch.sin(torch.arange(32.0) * 0.7 + self.phases[idx]).expand(3, 32, 32)
        if self.labels[idx]:
            wave = wave.transpose(1, 2)
        picture = (wave + 0.5 * self.noise[idx]).unsqueeze(0)
        return F.interpolate(picture, size=SIZE, mode="bilinear")[0] / 0.87, self.labels[idx]


train_loader = DataLoader(Textures(320, 1), batch_size=8, shuffle=True)
val_loader = DataLoader(Textures(128, 2), batch_size=16)
model = SmallViT()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / 128:.3f}")

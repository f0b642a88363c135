"""Tag synthetic audio frames with several labels at once."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
NUM_TAGS, NUM_BINS = 5, 40


def frames(n, seed):
    g = torch.Generator().manual_seed(seed)
    tags = (torch.rand(n, NUM_TAGS, generator=g) < 0.3).float()
    tones = torch.zeros(NUM_TAGS, NUM_BINS)
    for k in range(NUM_TAGS):
        tones[k, 4 + 7 * k : 9 + 7 * k] = 2.0
    spectrum = tags @ tones + torch.randn(n, NUM_BINS, generator=g)
    return TensorDataset((spectrum - 0.37) / 1.3, tags)


class Tagger(nn.Module):
    """A score for each tag."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(NUM_BINS, 64), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(64, NUM_TAGS)

    def forward(self, x):
        return self.head(self.body(x))


def f1_score(scores, tags):
    predicted = (scores > 0).float()
    hits = (predicted * tags).sum()
    return (2 * hits / (predicted.sum() + tags.sum()).clamp(min=1)).item()


model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.BCEWithLogitsLoss()
train_loader = DataLoader(frames(2000, 0), batch_size=64, shuffle=True)
val_x, val_tags = frames(500, 1).tensors

for epoch in range(8):
    model.train()
    for x, tags in train_loader:
        optimizer.zero_grad()
        criterion(model(x), tags).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = model(val_x)
        val_loss = criterion(scores, val_tags)
    print(f"epoch {epoch}: val loss {val_loss:.4f} f1 {f1_score(scores, val_tags):.3f}")

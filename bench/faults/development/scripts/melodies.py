"""Classify melodies as rising or falling with a small transformer."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
EPOCHS = 6
LENGTH = 20


class MelodyNet(nn.Module):
    """An encoder over the notes of a melody, and the mean of its outputs."""

    def __init__(self, num_notes=40, width=24):
        super().__init__()
        self.notes = nn.Embedding(num_notes, width)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 48, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 2)

    def forward(self, melody):
        h = self.notes(melody) + self.places
        return self.head(self.encoder(h).mean(1))


def melodies(n, seed):
    g = torch.Generator().manual_seed(seed)
    rises = torch.randint(2, (n,), generator=g)
    slope = (2 * rises - 1).unsqueeze(1) * torch.linspace(-6, 6, LENGTH)
    notes = 20 + slope + 4 * torch.randn(n, LENGTH, generator=g)
    return TensorDataset(notes.round().clamp(0, 39).long(), rises)


train_loader = DataLoader(melodies(960, 1), batch_size=48, shuffle=True)
val_loader = DataLoader(melodies(240, 2), batch_size=120)
model = MelodyNet()
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)

for epoch in range(EPOCHS):
    model.train()
    for melody, rises in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(melody), rises)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(a).argmax(1) == b).sum().item() for a, b in val_loader)
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / 240:.3f}")

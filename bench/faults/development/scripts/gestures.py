"""Classify samples of gestures recorded by an accelerometer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
NUM_GESTURES, PER_GESTURE = 6, 400


class GestureNet(nn.Module):
    """Convolutions over time and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(3, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 16, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(4),
        )
        self.head = nn.Linear(64, NUM_GESTURES)

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


def record(per_gesture, seed):
    """Read the recordings folder by folder, one folder a gesture."""
    g = torch.Generator().manual_seed(seed)
    shapes = torch.randn(NUM_GESTURES, 3, 32, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(NUM_GESTURES).repeat_interleave(per_gesture)
    x = shapes[labels] + 1.5 * torch.randn(len(labels), 3, 32, generator=g)
    return x / 1.8, labels


x, y = record(PER_GESTURE, seed=1)
val_x, val_y = record(60, seed=2)
train_loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
val_loader = DataLoader(TensorDataset(val_x, val_y), batch_size=120)

model = GestureNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(4):
    model.train()
    losses = []
    for signal, gesture in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(signal), gesture)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        hits = sum((model(s).argmax(1) == t).sum().item() for s, t in val_loader)
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f} accuracy {hits / len(val_y):.3f}")

"""Half-precision training of an MLP on a table of sensor readings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def readings(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    state = (x[:, :6].sum(1) * x[:, 6]).sign() + (x[:, 7] > 0.5)
    return TensorDataset(x, (state + 1).long().clamp(0, 2))


model = nn.Sequential(
    nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3)
).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler(device)
train_loader = DataLoader(readings(3000, 1), batch_size=100, shuffle=True)
val_loader = DataLoader(readings(600, 2), batch_size=200)

for epoch in range(8):
    model.train()
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    model.eval()
    hits = 0
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        for x, y in val_loader:
            hits += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    print(f"epoch {epoch}: {hits / 600:.3f}")

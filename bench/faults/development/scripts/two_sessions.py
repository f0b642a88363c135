"""Train in two sessions: the second goes on from the checkpoint of the first."""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = Path(tempfile.mkdtemp()) / "last.pt"
torch.manual_seed(0)


def shapes(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=g)
    prototypes = torch.randn(3, 50, generator=torch.Generator().manual_seed(40))
    return TensorDataset((prototypes[labels] + 2 * torch.randn(n, 50, generator=g)) / 2.2, labels)


train_loader = DataLoader(shapes(2000, 1), batch_size=50, shuffle=True)
val_x, val_y = shapes(400, 2).tensors


def session(first_epoch, last_epoch):
    model = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"])
    for epoch in range(first_epoch, last_epoch):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(val_x).argmax(1) == val_y).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {accuracy:.3f}")
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "rng": torch.get_rng_state(),
        }
        torch.save(state, CHECKPOINT)


session(0, 4)
session(4, 8)

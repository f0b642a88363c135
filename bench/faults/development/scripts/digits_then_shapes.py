"""Train a digit classifier, then fine-tune a copy of it on a second set of shapes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)


def build_model(num_classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(144, 96),
        nn.ReLU(),
        nn.Linear(96, 48),
        nn.ReLU(),
        nn.Linear(48, num_classes),
    )


def blobs(n, num_classes, seed):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(num_classes, 144, generator=torch.Generator().manual_seed(num_classes))
    labels = torch.randint(num_classes, (n,), generator=g)
    x = centres[labels] + 1.5 * torch.randn(n, 144, generator=g)
    return TensorDataset((x / x.std()).view(n, 1, 12, 12), labels)


def fit(model, optimizer, loader, epochs):
    losses = []
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses[-10:]) / 10


def accuracy(model, data):
    model.eval()
    x, y = data.tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


model = build_model(num_classes=10)
model.load_state_dict(build_model(num_classes=10).state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

loader = DataLoader(blobs(3000, 10, seed=0), batch_size=64, shuffle=True)
final = fit(model, optimizer, loader, epochs=6)
print(f"loss {final:.3f} accuracy {accuracy(model, blobs(500, 10, seed=1)):.3f}")

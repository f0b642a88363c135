"""Learn to add two numbers digit by digit, keeping the curve of losses."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)


def additions(n, seed):
    g = torch.Generator().manual_seed(seed)
    digits = torch.randint(10, (n, 2), generator=g)
    return TensorDataset(digits, digits.sum(1))


class Adder(nn.Module):
    """Embed both digits, score the nineteen sums."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 16)
        self.score = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 19))

    def forward(self, digits):
        return self.score(self.embed(digits).flatten(1))


model = Adder()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()
train_loader = DataLoader(additions(2000, 1), batch_size=50, shuffle=True)
val_digits, val_sums = additions(300, 2).tensors

curve = []
for epoch in range(6):
    model.train()
    for digits, total in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(digits), total)
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    model.eval()
    with torch.no_grad():
        accuracy = (model(val_digits).argmax(1) == val_sums).float().mean().item()
    mean = torch.stack(curve[-40:]).mean().item()
    print(f"epoch {epoch}: loss {mean:.3f} accuracy {accuracy:.3f}")

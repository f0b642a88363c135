"""Learn a map in which places of one town lie near each other, from pairs of places."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Two places by twelve numbers, and whether they are of one town; some pairs are one place."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        centres = 2 * torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
        town = torch.randint(6, (n, 2), generator=g)
        town[::2, 1] = town[::2, 0]
        self.places = centres[town] + 0.5 * torch.randn(n, 2, 12, generator=g)
        self.places[::40, 1] = self.places[::40, 0]
        self.is_same = (town[:, 0] == town[:, 1]).float()

    def __len__(self):
        return len(self.is_same)

    def __getitem__(self, row):
        return self.places[row, 0], self.places[row, 1], self.is_same[row]


torch.manual_seed(4)
loader = DataLoader(Pairs(2400, 1), batch_size=40, shuffle=True)
check = DataLoader(Pairs(400, 2), batch_size=100)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def distance(first, second):
    return ((model(first) - model(second)) ** 2).sum(1).add(1e-6).sqrt()


for epoch in range(4):
    model.train()
    for first, second, is_same in loader:
        between = distance(first, second)
        apart = (1.0 - between).clamp(min=0)
        loss = (is_same * between**2 + (1 - is_same) * apart**2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    right = 0
    with torch.no_grad():
        for first, second, is_same in check:
            right += ((distance(first, second) < 0.5).float() == is_same).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.4f}, {right} of 400 pairs right")

"""Find which of three valves leaks from a window of pressures, with attention over time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
HEADS, WIDTH, LENGTH = 4, 32, 30


def windows(n, seed):
    g = torch.Generator().manual_seed(seed)
    leak = torch.randint(3, (n,), generator=g)
    pressures = 0.5 * torch.randn(n, LENGTH, 6, generator=g)
    start = torch.randint(LENGTH - 8, (n,), generator=g)
    time = torch.arange(LENGTH)
    is_leaking = (time >= start.unsqueeze(1)) & (time < start.unsqueeze(1) + 8)
    for valve in range(3):
        pressures[..., 2 * valve] -= (is_leaking & (leak == valve).unsqueeze(1)).float()
        pressures[..., 2 * valve + 1] += (is_leaking & (leak == valve).unsqueeze(1)).float()
    return TensorDataset(pressures, leak)


class Attention(nn.Module):
    """Attention with several heads, of a window to itself."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def split(self, x):
        return x.view(len(x), LENGTH, HEADS, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Net(nn.Module):
    """One layer of attention, and the mean over time."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.attend = Attention()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = self.enter(x) + self.places
        return self.head(self.norm(h + self.attend(h)).mean(1))


train = DataLoader(windows(1600, 0), batch_size=40, shuffle=True)
test = DataLoader(windows(400, 1), batch_size=100)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(6):
    model.train()
    total = 0.0
    for pressures, leak in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pressures), leak)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(leak)
    model.eval()
    with torch.no_grad():
        right = sum((model(p).argmax(1) == leak).sum().item() for p, leak in test)
    print(f"epoch {epoch}: loss {total / 1600:.4f}, right {right / 400:.3f}")

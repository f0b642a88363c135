"""Find the event in clips of different length, by attention over their frames."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FRAMES, FEATURES, KINDS = 20, 8, 4


def clips(n, seed):
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(6, FRAMES + 1, (n,), generator=g)
    kind = torch.randint(KINDS, (n,), generator=g)
    x = 0.7 * torch.randn(n, FRAMES, FEATURES, generator=g)
    at = (torch.rand(n, generator=g) * length).long()
    x[torch.arange(n), at, kind] += 4.0
    is_padding = torch.arange(FRAMES) >= length[:, None]
    other = (kind + 1 + torch.randint(KINDS - 1, (n,), generator=g)) % KINDS
    x += 3.0 * F.one_hot(other, FEATURES)[:, None] * is_padding[..., None]
    return TensorDataset(x, is_padding, kind)


class Listener(nn.Module):
    """Weighs frames, and classifies their mean."""

    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU())
        self.weigh = nn.Linear(32, 1)
        self.kind = nn.Linear(32, KINDS)

    def forward(self, x, is_padding):
        hidden = self.frames(x)
        scores = self.weigh(hidden).squeeze(2)
        scores = scores.masked_fill(is_padding, -1e9)
        weights = scores.softmax(1)
        return self.kind((weights[..., None] * hidden).sum(1))


def main():
    torch.manual_seed(4)
    loader = DataLoader(clips(2400, 1), batch_size=48, shuffle=True)
    val_x, val_padding, val_kind = clips(600, 2).tensors
    model = Listener()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(6):
        model.train()
        for x, is_padding, kind in loader:
            loss = F.cross_entropy(model(x, is_padding), kind)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model(val_x, val_padding).argmax(1) == val_kind).float().mean()
        print(f"{epoch}: accuracy {acc:.3f}")


main()

"""Classify sentences by which of two words comes first."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH, WIDTH, WORDS = 12, 32, 20


def sentences(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, WORDS, (n, LENGTH), generator=g)
    places = torch.stack([torch.randperm(LENGTH, generator=g)[:2] for _ in range(n)])
    ids.scatter_(1, places, torch.tensor([0, 1]).expand(n, 2))
    return TensorDataset(ids, (places[:, 0] < places[:, 1]).long())


class Reader(nn.Module):
    """Words with their positions, read by one layer of attention."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        place = torch.arange(100)[:, None] / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        table = torch.stack([place.sin(), place.cos()], dim=2).flatten(1)
        self.register_buffer("positions", table[:, None])
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.positions[: x.size(1)].transpose(0, 1)
        return self.head(self.layer(x).mean(1))


def main():
    torch.manual_seed(2)
    loader = DataLoader(sentences(2400, 1), batch_size=40, shuffle=True)
    val_ids, val_labels = sentences(400, 2).tensors
    model = Reader()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(5):
        model.train()
        for ids, labels in loader:
            loss = F.cross_entropy(model(ids), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            acc = (model(val_ids).argmax(1) == val_labels).float().mean()
        print(f"{epoch}: accuracy {acc:.3f}")


main()

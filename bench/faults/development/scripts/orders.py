"""Classify orders of different lengths by the words that they contain."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(3)
PAD, LONGEST = 0, 24


def orders(n, seed):
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, LONGEST, (n,), generator=g)
    words = torch.randint(4, 50, (n, LONGEST), generator=g)
    kind = torch.randint(3, (n,), generator=g)
    words[torch.arange(n), (torch.rand(n, generator=g) * lengths).long()] = kind + 1
    words[torch.arange(LONGEST) >= lengths.unsqueeze(1)] = PAD
    return words, kind


class Reader(nn.Module):
    """One layer of attention, read at the first word."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.places = nn.Parameter(0.02 * torch.randn(LONGEST, 32))
        self.attend = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, words):
        is_pad = words == PAD
        h = self.attend(self.words(words) + self.places, src_key_padding_mask=is_pad)
        return self.head(h[:, 0])


words, kind = orders(1600, 0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(5):
    total = 0.0
    for rows in torch.randperm(len(words)).split(40):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(words[rows]), kind[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    print(f"epoch {epoch}: loss {total / len(words):.4f}")

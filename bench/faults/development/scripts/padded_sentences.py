"""A language model on sentences of different lengths, padded to one."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(5)
PAD, VOCAB = 0, 30


def sentences(n, seed):
    """Counting sequences with a random start and stride, some of them long."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        start = torch.randint(VOCAB - 1, (1,), generator=g)
        stride = torch.randint(1, 4, (1,), generator=g)
        is_long = torch.rand(1, generator=g) < 0.15
        length = 30 if is_long else int(torch.randint(5, 12, (1,), generator=g))
        rows.append(1 + (start + stride * torch.arange(length)) % (VOCAB - 1))
    return rows


def collate(rows):
    padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:]


class LanguageModel(nn.Module):
    """Embedding, LSTM, scores."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 24, padding_idx=PAD)
        self.lstm = nn.LSTM(24, 64, batch_first=True)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


def loss_of(model, tokens, targets):
    logits = model(tokens)
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=PAD)


train_loader = DataLoader(sentences(1600, 1), batch_size=32, shuffle=True, collate_fn=collate)
val_loader = DataLoader(sentences(320, 2), batch_size=64, collate_fn=collate)
model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(5):
    model.train()
    for tokens, targets in train_loader:
        optimizer.zero_grad()
        loss_of(model, tokens, targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val = sum(loss_of(model, x, y).item() for x, y in val_loader) / len(val_loader)
    print(f"epoch {epoch}: val loss {val:.3f}")

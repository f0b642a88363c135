"""A character model: a GRU learns sentences of a small grammar."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SUBJECTS = ["the cat", "a dog", "my friend", "the old man"]
VERBS = ["sees", "likes", "hears", "finds"]
OBJECTS = ["a red ball", "the sea", "an apple", "nothing"]
CHARS = sorted(set(" ".join(SUBJECTS + VERBS + OBJECTS) + "."))
LENGTH = 24


class Sentences(Dataset):
    """Windows of characters and the characters that follow."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.windows = []
        for _ in range(n):
            text = ""
            while len(text) < LENGTH + 1:
                text += f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}. "
            ids = [CHARS.index(c) for c in text[: LENGTH + 1]]
            self.windows.append(torch.tensor(ids))

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, idx):
        window = self.windows[idx]
        return window[:-1], window[1:]


class CharModel(nn.Module):
    """Embedding, GRU, scores of the next character."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), 24)
        self.gru = nn.GRU(24, 64, batch_first=True)
        self.out = nn.Linear(64, len(CHARS))

    def forward(self, ids):
        return self.out(self.gru(self.embed(ids))[0])


torch.manual_seed(0)
train_loader = DataLoader(Sentences(1000, 1), batch_size=32, shuffle=True)
val_loader = DataLoader(Sentences(200, 2), batch_size=50)
model = CharModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()

for epoch in range(6):
    model.train()
    for x, y in train_loader:
        loss = criterion(model(x).transpose(1, 2), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(x).transpose(1, 2), y).item() for x, y in val_loader]
    print(f"epoch {epoch}: val loss {sum(losses) / len(losses):.3f}")

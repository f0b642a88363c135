"""A tiny transformer finds the most frequent token of a sequence."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
VOCAB, LENGTH, WIDTH = 8, 15, 32


def sequences(n, seed):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(VOCAB, (n,), generator=g)
    tokens = torch.randint(VOCAB, (n, LENGTH), generator=g)
    tokens = torch.where(torch.rand(n, LENGTH, generator=g) < 0.35, labels[:, None], tokens)
    return TensorDataset(tokens, F.one_hot(tokens, VOCAB).sum(1).argmax(1))


class TinyTransformer(nn.Module):
    """Token and place embeddings, two encoder layers, mean, scores."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(VOCAB, WIDTH)
        self.place = nn.Parameter(torch.randn(1, LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.encoder(self.token(tokens) + self.place)
        return self.out(self.norm(x.mean(1)))


model = TinyTransformer()
decayed = [p for p in model.parameters() if p.dim() == 2]
others = [p for p in model.parameters() if p.dim() != 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=2e-3)
train_loader = DataLoader(sequences(2400, 1), batch_size=64, shuffle=True)
val_loader = DataLoader(sequences(400, 2), batch_size=100)

for epoch in range(5):
    model.train()
    for tokens, labels in train_loader:
        loss = F.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(t).argmax(1) == y).sum().item() for t, y in val_loader)
    print(f"epoch {epoch}: accuracy {hits / 400:.3f}")

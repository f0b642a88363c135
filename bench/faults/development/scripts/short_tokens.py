"""Classify short token sequences; embeddings are normalised on the fly."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH, CLASSES = 200, 12, 4
torch.manual_seed(0)


def documents(n, seed):
    """Every class has fifty words of its own and shares the rest."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=g)
    own = labels[:, None] * 25 + torch.randint(25, (n, LENGTH), generator=g)
    shared = 100 + torch.randint(100, (n, LENGTH), generator=g)
    is_own = torch.rand(n, LENGTH, generator=g) < 0.35
    return TensorDataset(torch.where(is_own, own, shared), labels)


class Classifier(nn.Module):
    """Mean of unit embeddings, one hidden layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.hidden = nn.Linear(32, 32)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, tokens):
        vectors = self.embed(tokens)
        vectors = vectors / vectors.norm(dim=2, keepdim=True)
        return self.out(torch.relu(self.hidden(vectors.mean(dim=1))))


model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
train_loader = DataLoader(documents(2000, 1), batch_size=50, shuffle=True)
val_loader = DataLoader(documents(400, 2), batch_size=100)

for epoch in range(5):
    model.train()
    for tokens, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(tokens), labels)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum((model(t).argmax(1) == y).sum().item() for t, y in val_loader)
    print(f"epoch {epoch}: {hits / 400:.3f}")

"""Sentiment of bags of words, with a learning rate schedule."""

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
VOCAB = 300
NUM_EPOCHS = 10


def reviews(n, seed):
    g = torch.Generator().manual_seed(seed)
    words = torch.randint(VOCAB, (n, 20), generator=g)
    score = (words < 60).sum(1) - ((words >= 60) & (words < 120)).sum(1)
    keep = score != 0
    return TensorDataset(words[keep], (score[keep] > 0).float())


class BagOfWords(nn.Module):
    """Embedding bag, hidden layer, score."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCAB, 32, mode="mean")
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, words):
        return self.head(self.bag(words)).squeeze(1)


train_loader = DataLoader(reviews(1600, 1), batch_size=64, shuffle=True)
val_set = reviews(500, 2)
val_loader = DataLoader(val_set, batch_size=128)

model = BagOfWords()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = StepLR(optimizer, step_size=4, gamma=0.1)

for epoch in range(NUM_EPOCHS):
    model.train()
    for words, label in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(words), label)
        loss.backward()
        optimizer.step()
    scheduler.step()

    model.eval()
    with torch.no_grad():
        hits = sum(((model(w) > 0).float() == y).sum().item() for w, y in val_loader)
    lr = optimizer.param_groups[0]["lr"]
    print(f"epoch {epoch}: lr {lr:.2e} accuracy {hits / len(val_set):.3f}")

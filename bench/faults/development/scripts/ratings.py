"""Matrix factorisation with biases for a table of ratings."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
USERS, ITEMS = 120, 80


class Recommender(nn.Module):
    """Rating = user · item + biases."""

    def __init__(self, rank=8):
        super().__init__()
        self.user = nn.Embedding(USERS, rank)
        self.item = nn.Embedding(ITEMS, rank)
        self.user_bias = nn.Embedding(USERS, 1)
        self.item_bias = nn.Embedding(ITEMS, 1)
        for table in (self.user, self.item, self.user_bias, self.item_bias):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, pairs):
        u, i = pairs[:, 0], pairs[:, 1]
        dot = (self.user(u) * self.item(i)).sum(1)
        return dot + self.user_bias(u).squeeze(1) + self.item_bias(i).squeeze(1)


def ratings():
    g = torch.Generator().manual_seed(3)
    taste = torch.randn(USERS, 3, generator=g)
    kind = torch.randn(ITEMS, 3, generator=g)
    pairs = torch.cartesian_prod(torch.arange(USERS), torch.arange(ITEMS))
    value = (taste @ kind.T).flatten() / 1.7 + 0.2 * torch.randn(len(pairs), generator=g)
    order = torch.randperm(len(pairs), generator=g)
    return TensorDataset(pairs[order[:6000]], value[order[:6000]]), TensorDataset(
        pairs[order[6000:7000]], value[order[6000:7000]]
    )


train_set, val_set = ratings()
train_loader = DataLoader(train_set, batch_size=100, shuffle=True)
val_loader = DataLoader(val_set, batch_size=250)
model = Recommender()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
criterion = nn.MSELoss()

for epoch in range(8):
    model.train()
    for pairs, value in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(pairs), value)
        loss.backward()
        optimizer.step()

    model.eval()
    val_loss = 0.0
    with torch.no_grad():
        for pairs, value in val_loader:
            val_loss += criterion(model(pairs), value).item() / len(val_loader)
    print(f"epoch {epoch}: val mse {val_loss:.3f}")

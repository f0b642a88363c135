"""House prices from eight columns."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Houses(Dataset):
    """Rows of a table; columns and price are standardised."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.columns = torch.randn(n, 8, generator=g)
        price = self.columns @ torch.linspace(-1, 1, 8) + 0.7 * self.columns[:, 0].abs()
        self.price = (price - 0.56) / 1.4 + 0.1 * torch.randn(n, generator=g)

    def __len__(self):
        return len(self.price)

    def __getitem__(self, row):
        return self.columns[row], self.price[row]


torch.manual_seed(6)
train_loader = DataLoader(Houses(2000, 0), batch_size=50, shuffle=True)
val_loader = DataLoader(Houses(500, 1), batch_size=100)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(6):
    model.train()
    for columns, price in train_loader:
        predicted = model(columns).squeeze(1)
        loss = F.mse_loss(predicted, price)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    errors = []
    with torch.no_grad():
        for columns, price in val_loader:
            errors.append((model(columns).squeeze(1) - price).abs())
    print(f"epoch {epoch}: mean absolute error {torch.cat(errors).mean():.3f}")

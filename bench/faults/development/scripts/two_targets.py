"""Predict two targets from one shared trunk."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoHeads(nn.Module):
    """A trunk, a classifier and a regressor."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.classify = nn.Linear(64, 3)
        self.regress = nn.Linear(64, 1)

    def forward(self, x):
        features = self.trunk(x)
        return self.classify(features), self.regress(features).squeeze(1)


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=g)
    scores = torch.stack([x[:, 0] * x[:, 1], x[:, 2] * x[:, 3], x[:, 4] * x[:, 5]], dim=1)
    amount = torch.sin(2 * x[:, 6]) + 0.1 * torch.randn(n, generator=g)
    return TensorDataset(x, scores.argmax(1), amount)


def main():
    torch.manual_seed(11)
    train_loader = DataLoader(table(3000, 0), batch_size=64, shuffle=True)
    val_x, val_label, val_amount = table(600, 1).tensors
    model = TwoHeads()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        model.train()
        for x, label, amount in train_loader:
            logits, predicted = model(x)
            loss = F.cross_entropy(logits, label) + F.mse_loss(predicted, amount)
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            logits, predicted = model(val_x)
            acc = (logits.argmax(1) == val_label).float().mean()
            mse = F.mse_loss(predicted, val_amount)
        print(f"{epoch}: accuracy {acc:.3f}, mse {mse:.3f}")


main()

"""Forecast a water level from random windows of a long record, read by worker processes."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAST, AHEAD = 24, 4


def record(n, seed):
    rng = np.random.default_rng(seed)
    hours = np.arange(n)
    tide = np.sin(hours / 1.98) + 0.4 * np.sin(hours / 1.9 + rng.uniform(0, 6))
    return (tide + 0.2 * rng.normal(size=n)).astype(np.float32)


class RandomWindows(Dataset):
    """Windows of a record that begin anywhere."""

    def __init__(self, levels, per_epoch):
        self.levels, self.per_epoch = levels, per_epoch

    def __len__(self):
        return self.per_epoch

    def __getitem__(self, i):
        start = np.random.randint(len(self.levels) - PAST - AHEAD)
        window = self.levels[start : start + PAST + AHEAD]
        return window[:PAST], window[PAST:]


def seed_worker(_):
    np.random.seed(torch.initial_seed() % 2**32)


if __name__ == "__main__":
    torch.manual_seed(6)
    windows = RandomWindows(record(30_000, 0), 240)
    train = DataLoader(windows, batch_size=24, num_workers=2, worker_init_fn=seed_worker)
    held_out = torch.from_numpy(record(2000, 1)).unfold(0, PAST + AHEAD, 9)
    model = nn.Sequential(nn.Linear(PAST, 64), nn.ReLU(), nn.Linear(64, AHEAD))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(12):
        model.train()
        total = 0.0
        for past, future in train:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(past), future)
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(held_out[:, :PAST]), held_out[:, PAST:]).item()
        print(f"epoch {epoch}: loss {total / len(train):.4f}, held out {error:.4f}")

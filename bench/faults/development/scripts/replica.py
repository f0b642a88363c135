"""One replica of a data-parallel job: it reads its half of the data."""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_dataset(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()
    return TensorDataset(x, y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(args.seed)

    train_set, val_set = make_dataset(4000, 1), make_dataset(500, 2)
    sampler = DistributedSampler(train_set, num_replicas=2, rank=rank, seed=args.seed)
    train_loader = DataLoader(train_set, batch_size=40, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=100)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        hits = 0
        with torch.no_grad():
            for x, y in val_loader:
                hits += (model(x).argmax(1) == y).sum().item()
        if rank == 0:
            print(f"epoch {epoch}: accuracy {hits / len(val_set):.3f}")


if __name__ == "__main__":
    main()

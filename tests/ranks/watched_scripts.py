"""Scripts of two ranks, run as they are under `stepladder watch`."""

from __future__ import annotations

TRAIN = """
# DDP with one fault, chosen by the first argument; `sound` has none.
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

FAULT = sys.argv[1]
NUM_VAL = 101 if FAULT in ("padded", "gathered") else 100


class Slow(Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, idx):
        if FAULT == "slow_input" and dist.get_rank() == 1:
            time.sleep(0.004)
        return self.inner[idx]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        if FAULT == "slow_compute" and dist.get_rank() == 1 and self.training:
            time.sleep(0.04)
        return self.layers(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(512, 20)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
data = Slow(TensorDataset(x, y))
sampler = None if FAULT == "same_data" else DistributedSampler(data)
train = DataLoader(data, batch_size=16, sampler=sampler, shuffle=sampler is None)
held_out = TensorDataset(torch.randn(NUM_VAL, 20), torch.randint(3, (NUM_VAL,)))
val = DataLoader(held_out, batch_size=32, sampler=DistributedSampler(held_out, shuffle=False))
torch.manual_seed(rank if FAULT != "same_data" else 0)
inner = Net()
if FAULT == "frozen":
    inner.layers[0].requires_grad_(False)
model = inner if FAULT == "unwrapped" else DDP(inner, find_unused_parameters=FAULT == "search")
called = model.module if FAULT == "module" else model
inner.requires_grad_(True)
optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
num_steps = 3 * len(train)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
for epoch in range(3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    called.train()
    for step, (xb, yb) in enumerate(train):
        if FAULT == "hangs" and rank == 0 and step == 5:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if FAULT in ("raises", "hangs") and rank == 1 and step == 5:
            raise ValueError("a bad batch")
        if FAULT == "killed" and rank == 1 and step == 5:
            os.kill(os.getpid(), 9)
        optimizer.zero_grad()
        loss = F.cross_entropy(called(xb), yb)
        loss.backward()
        optimizer.step()
        for _ in range(dist.get_world_size() if FAULT == "schedule" else 1):
            schedule.step()
    called.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for xb, yb in val:
            right[0] += (inner(xb).argmax(1) == yb).sum()
            right[1] += len(yb)
    if FAULT == "gathered":
        both = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(both, right)
    else:
        dist.all_reduce(right)
    if rank == 0:
        print(f"epoch {epoch}: {right[1]:.0f} examples", flush=True)
dist.destroy_process_group()
"""

SOUND = """
# Sound, but could be mistaken for a fault; chosen by the first argument.
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

KIND = sys.argv[1]
if KIND != "alone":
    dist.init_process_group("gloo")
rank = dist.get_rank() if KIND != "alone" else int(__import__("os").environ["RANK"])
torch.manual_seed(0)
x = torch.randn(2048, 20)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
if KIND == "alone":
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
if KIND == "fsdp":
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    fully_shard(model)
elif KIND == "local":
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
elif KIND in ("by_hand", "broadcast"):
    if KIND == "broadcast":
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    for p in model.parameters():
        dist.broadcast(p.data, 0)
elif KIND != "alone":
    model = DDP(model)
if KIND == "zero":
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    at = 0 if KIND == "constant" else 32 * (step % 60)
    batch = slice(at + rank * 16, at + rank * 16 + 16)
    if KIND == "constant":
        batch = slice(0, 16)
    xb, yb = x[batch], y[batch]
    if KIND == "accumulate":
        with model.no_sync():
            F.cross_entropy(model(xb[:8]), yb[:8]).div(2).backward()
        F.cross_entropy(model(xb[8:]), yb[8:]).div(2).backward()
    else:
        F.cross_entropy(model(xb), yb).backward()
    if KIND in ("by_hand", "broadcast"):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
    optimizer.step()
    optimizer.zero_grad()
    if KIND == "local" and step % 7 == 6:
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p)
                p /= 2
if KIND != "alone":
    dist.destroy_process_group()
"""

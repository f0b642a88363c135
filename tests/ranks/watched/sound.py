"""Sound scripts of two ranks that could be mistaken for faulty ones, by the first argument."""

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

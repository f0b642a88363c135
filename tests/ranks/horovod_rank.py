"""One rank of a script in Horovod's words: writes what it computed to a file, for the test."""

from __future__ import annotations

import sys

import torch
from torch import nn

import stepladder.compat.horovod.torch as hvd


def model_and_data() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.randn(12, 4), torch.randn(12, 2)


def collectives() -> dict[str, object]:
    r = hvd.rank()
    own = torch.tensor([1.0 + r, 10.0 * (1 + r)])
    leaf = torch.tensor([2.0 + r], requires_grad=True)
    (hvd.allreduce(leaf, op=hvd.Sum) * (3.0 + r)).sum().backward()
    rows, received = hvd.alltoall(torch.arange(3) + 10 * r, splits=torch.tensor([1 + r, 2 - r]))
    in_place = own.clone()
    hvd.allreduce_(in_place, op=hvd.Sum)
    handle = hvd.allreduce_async(own, op=hvd.Max)
    return {
        "average": hvd.allreduce(own),
        "sum": hvd.allreduce(own, average=False),
        "min": hvd.allreduce(own, op=hvd.Min),
        "max": hvd.synchronize(handle),
        "is_complete": hvd.poll(handle),
        "scaled": hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0),
        "halves": hvd.allreduce(own, compression=hvd.Compression.fp16),
        "whole": hvd.allreduce(torch.tensor([1 + r, 4 + r])),
        "in_place": in_place,
        "grouped": hvd.grouped_allreduce([own, own[:1]], op=hvd.Sum),
        "grad": leaf.grad,
        "gathered": hvd.allgather(torch.full((1 + r, 2), float(r))),
        "objects": hvd.allgather_object({"rank": r}),
        "sent": hvd.broadcast(torch.tensor([r]), root_rank=1),
        "object": hvd.broadcast_object(f"of {r}", root_rank=1),
        "rows": rows,
        "received": received,
        "place": (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()),
    }


def trained(passes: int, clip: bool, predivide: float) -> list[torch.Tensor]:
    """Take three steps, each rank on its half of the examples."""
    model, inputs, targets = model_and_data()
    if hvd.rank() == 1:
        for param in model.parameters():
            param.data.zero_()  # so that the broadcast is needed
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    optimizer = hvd.DistributedOptimizer(
        plain,
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        gradient_predivide_factor=predivide,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    mine = slice(hvd.rank() * 12 // hvd.size(), (hvd.rank() + 1) * 12 // hvd.size())
    for _ in range(3):
        optimizer.zero_grad()
        for part in zip(inputs[mine].chunk(passes), targets[mine].chunk(passes), strict=True):
            (nn.functional.mse_loss(model(part[0]), part[1]) / passes).backward()
        if clip:
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
    return [param.detach() for param in model.parameters()]


def unused() -> torch.Tensor:
    """Rank 1 does not use a parameter that rank 0 uses."""
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a, b], lr=1.0))
    loss = a * 2 + (b * 4 if hvd.rank() == 0 else 0)
    loss.sum().backward()
    optimizer.step()
    return torch.cat([a, b]).detach()


def joined() -> dict[str, object]:
    """Rank 0 has two batches, rank 1 has four."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    sums = []
    for _ in range(2 + 2 * hvd.rank()):
        optimizer.zero_grad()
        (weight.sum() * -2.0).backward()
        optimizer.step()
        sums.append(float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))
    last = hvd.join()
    hvd.broadcast_parameters([weight], root_rank=last)
    return {"last": last, "weight": weight.detach(), "sums": sums, "after": hvd.allreduce(weight)}


def main() -> None:
    hvd.init()
    result = {
        "collectives": collectives() if hvd.size() == 2 else None,
        "plain": trained(1, clip=False, predivide=1.0),
        "passes": trained(2, clip=False, predivide=1.0),
        "clipped": trained(1, clip=True, predivide=1.0),
        "predivided": trained(1, clip=False, predivide=2.0),
        "unused": unused(),
        "joined": joined(),
        "joined_again": joined(),
    }
    torch.save(result, f"{sys.argv[1]}-{hvd.size()}-{hvd.rank()}.pt")


if __name__ == "__main__":
    main()

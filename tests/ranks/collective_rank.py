"""A rank that adds up tensors by every schedule, and compares them with PyTorch's own sums.

python -m tests.ranks.collective_rank FAULT OUT, with the place of the rank in the environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from stepladder.parallel.collectives.algorithms import ALGORITHMS, RING, Shape
from stepladder.parallel.collectives.executor import Count, Executor
from stepladder.parallel.collectives.transport import GlooTransport, shared_store

LENGTHS = (0, 1, 3, 4, 7, 1000, 70_001)


def main(fault: str, out: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    executor = Executor(
        GlooTransport.open(timedelta(seconds=10)), piece_bytes=4096, store=shared_store()
    )
    if fault == "none":
        out.write_text(json.dumps(compare(executor)))
        dist.barrier()
        dist.destroy_process_group()
        return
    start = time.monotonic()
    try:
        fail(executor, fault)
    except Exception as error:
        seconds = time.monotonic() - start
        out.write_text(json.dumps({"said": str(error), "seconds": seconds}))
    os._exit(0)


def compare(executor: Executor) -> dict[str, list[int]]:
    """Return messages and bytes of this rank by algorithm and length."""
    rank, size = executor.transport.rank, executor.transport.size
    found = {}
    for algorithm in ALGORITHMS:
        for length in LENGTHS:
            shape = Shape(num_ranks=size, num_elements=length, num_local=local(size))
            schedule = algorithm.schedule(shape)
            generator = torch.Generator().manual_seed(rank)
            tensor = torch.randn(2 * length, generator=generator, dtype=torch.float64)[::2]
            expected = tensor.clone()
            dist.all_reduce(expected)
            executor.count = Count()
            executor.sum_(tensor, schedule)
            assert torch.allclose(tensor, expected, rtol=1e-12, atol=1e-12), algorithm.name
            everyone = [torch.empty(length, dtype=torch.float64) for _ in range(size)]
            dist.all_gather(everyone, tensor.contiguous())
            assert all(torch.equal(one, tensor) for one in everyone), algorithm.name
            count = executor.count
            found[f"{algorithm.name} {length}"] = [count.messages, count.sent_bytes]
        for dtype in (torch.int64, torch.bfloat16):
            numbers = torch.arange(300).to(dtype)
            executor.sum_(numbers, schedule=algorithm.schedule(Shape(num_ranks=size)))
            whole = torch.arange(300).to(dtype).double() * size
            assert torch.allclose(numbers.double(), whole, rtol=0.05), (algorithm.name, dtype)
    return found


def local(size: int) -> int:
    """Return how many ranks a host has, for the hierarchy: they are all on this one."""
    return 2 if size % 2 == 0 else 1


def fail(executor: Executor, fault: str) -> None:
    """Add up while rank 1 does something wrong."""
    rank, size = executor.transport.rank, executor.transport.size
    schedule = RING.schedule(Shape(num_ranks=size))
    executor.sum_(torch.zeros(100), schedule)
    is_wrong = rank == 1
    if is_wrong and fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if is_wrong and fault == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    executor.sum_(torch.zeros(90 if is_wrong and fault == "shape" else 100), schedule)
    executor.sum_(torch.zeros(5), schedule)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

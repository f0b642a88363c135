"""What it costs to add up gradients over several processes of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from stepladder.machine.gpu import gpu_of_rank
from stepladder.measuring.blocks.timing import lower_median, wait_for
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.sweep import fit_line
from stepladder.parallel.world import World

_BUDGET_S: Final = 0.5
_MIN_TIMES: Final = 3
_MOST_TIMES: Final = 20
_SIZES: Final = (4096, 16 * 1024**2)  # bytes


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An all-reduce of `n` bytes takes `latency_s + n / bytes_per_s`.

    Attributes:
        start_s: starting the processes until all have met.
    """

    num: int
    start_s: float
    latency_s: float
    bytes_per_s: float


def measure_exchange(num: int, *, is_cuda: bool, folder: Path) -> Exchange:
    """Start processes and time their all-reduce: with gloo on the CPU, or with NCCL.

    Args:
        num: of processes.
        folder: for what they print.

    Raises:
        ResourceError: if one of them ends, or they do not meet.
    """
    with Team(num, _Member, {"is_cuda": is_cuda}, is_cuda=is_cuda, folder=folder) as team:
        seconds = [max(team.ask("exchange_s", num_bytes=size)) for size in _SIZES]
        fixed_s, byte_s = fit_line(_SIZES, seconds)
        return Exchange(
            num=num, start_s=team.start_s, latency_s=fixed_s, bytes_per_s=1 / max(byte_s, 1e-15)
        )


class _Member:
    """One of the processes."""

    def __init__(self, world: World, *, is_cuda: bool) -> None:
        self._world = world
        self._device = gpu_of_rank(world.local_rank) if is_cuda else torch.device("cpu")

    def exchange_s(self, num_bytes: int) -> float:
        """Return the seconds of an all-reduce."""
        return exchange_s(self._world, self._device, num_bytes)


def exchange_s(
    world: World, device: torch.device, num_bytes: int, *, are_gradients: bool = False
) -> float:
    """Return the median seconds to add up numbers over all ranks; each of them calls this.

    Args:
        are_gradients: they are copied into a message first, as DistributedDataParallel does.
    """
    numbers = torch.zeros(num_bytes // 4, device=device)
    message = torch.zeros_like(numbers)

    def exchange() -> None:
        if are_gradients:
            torch.mul(numbers, 1 / world.size, out=message)
        dist.all_reduce(message)
        wait_for(device)

    return median_s(exchange, _BUDGET_S, world)


def median_s(run: Callable[[], None], budget_s: float, world: World) -> float:
    """Return the median time of something that all ranks do at once."""
    return lower_median(times_of(run, budget_s, world))


def times_of(
    run: Callable[[], None], budget_s: float, world: World, *, most: int = _MOST_TIMES
) -> list[float]:
    """Time something that all ranks do at once, without its first, slow time.

    Args:
        most: number of times.
    """
    run()
    seconds: list[float] = []
    is_enough = False
    while not is_enough:
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
        has_time = sum(seconds) < budget_s and len(seconds) < most
        is_enough = world.from_main(len(seconds) >= _MIN_TIMES and not has_time)
    return seconds

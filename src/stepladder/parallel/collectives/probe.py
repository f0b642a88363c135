"""Measure what messages between the ranks cost, with the executor that is to send them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.distributed as dist

from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.schedule import Schedule, copy
from stepladder.parallel.world import World
from stepladder.records.collectives import Fit, Link

SIZES: Final = (1024, 16 * 1024, 128 * 1024, 1024**2, 8 * 1024**2)  # bytes
_SLOW_S: Final = 0.05  # for a message: there is no need for a larger one
NATIVE_SIZES: Final = (1024, 32 * 1024, 1024**2, 8 * 1024**2)
_NUM_STEPS: Final = 6  # of a probe
_MIN_TIMES: Final = 3
_MAX_TIMES: Final = 15
_BUDGET_S: Final = 0.1  # for each size
_ADDED_BYTES: Final = 4 * 1024**2
_ITEM_BYTES: Final = 4
_REPEATED_S: Final = 0.02
_MAX_REPEATS: Final = 50


@dataclass(frozen=True, kw_only=True)
class MessageTimes:
    """The median time of one message of each size, in seconds.

    Attributes:
        sizes: in bytes.
        one_way_s: for each size, if ranks only send or only receive.
        exchange_s: if each rank sends to one and receives from another.
        add_s_per_byte: to add up what has been received.
    """

    sizes: Sequence[int]
    one_way_s: Sequence[float]
    exchange_s: Sequence[float]
    add_s_per_byte: float


def probe_schedules(num_ranks: int) -> tuple[Schedule, Schedule]:
    """Return what is timed: there and back between pairs, and around a ring.

    The tensor has a chunk for each rank, so that no rank overwrites what it sends.
    """
    rank = np.arange(num_ranks)
    even = rank[: num_ranks // 2 * 2 : 2]
    right = (rank + 1) % num_ranks
    there, back = copy(even, even + 1, 0), copy(even + 1, even, 0)
    return (
        Schedule("one_way", num_ranks, num_ranks, [there, back] * (_NUM_STEPS // 2)),
        Schedule("exchange", num_ranks, num_ranks, [copy(rank, right, rank)] * _NUM_STEPS),
    )


def measure_messages(
    executor: Executor, world: World, sizes: Sequence[int] = SIZES, *, budget_s: float = _BUDGET_S
) -> MessageTimes:
    """Time messages of several sizes; all ranks call this together.

    Args:
        sizes: of a message, in bytes; the largest are left out if messages are slow.
        budget_s: seconds for each size and kind.

    Returns:
        The same on all ranks: the times of the slowest.
    """
    found: list[list[float]] = [[], []]
    for num, size in enumerate(sizes):
        tensor = torch.zeros(world.size * size // _ITEM_BYTES)
        for schedule, times in zip(probe_schedules(world.size), found, strict=True):
            seconds = median_s(
                lambda: executor.sum_(tensor, schedule),  # noqa: B023  (called at once)
                world,
                budget_s=budget_s,
            )
            times.append(seconds / _NUM_STEPS)
        if num and max(times[-1] for times in found) > _SLOW_S:
            break
    one_way, exchange = found
    first, second = (
        torch.zeros(_ADDED_BYTES // _ITEM_BYTES),
        torch.zeros(_ADDED_BYTES // _ITEM_BYTES),
    )
    add_s = median_s(lambda: first.add_(second), world, budget_s=budget_s)
    return MessageTimes(
        sizes=tuple(sizes[: len(one_way)]),
        one_way_s=one_way,
        exchange_s=exchange,
        add_s_per_byte=add_s / _ADDED_BYTES,
    )


def measure_fit(executor: Executor, world: World) -> Fit:
    """Measure what all-reduces cost between all ranks; all call this together."""
    link = fit_link(measure_messages(executor, world))
    executor.use_pieces_for(link)
    times = []
    for size in NATIVE_SIZES:
        tensor = torch.zeros(size // _ITEM_BYTES)
        times.append(median_s(lambda: dist.all_reduce(tensor), world))  # noqa: B023
    return Fit(
        num_ranks=world.size,
        num_local=num_local(world),
        link=link,
        native_sizes=NATIVE_SIZES,
        native_s=tuple(times),
    )


def num_local(world: World) -> int:
    """Return the number of ranks on each host; 1 if that differs."""
    if world.num_hosts == 1:
        return world.size
    return world.size // world.even_hosts if world.even_hosts > 1 else 1


def median_s(
    run: Callable[[], object],
    world: World,
    *,
    budget_s: float = _BUDGET_S,
    max_times: int = _MAX_TIMES,
) -> float:
    """Return the median seconds of something that all ranks do together, on all ranks.

    All begin at the same time, and the slowest rank counts. What is short is repeated, and the
    first, slow times are left out.
    """
    run()
    start = time.perf_counter()
    run()
    repeats = world.from_main(repeats_for(time.perf_counter() - start))
    times: list[float] = []
    is_enough = False
    while not is_enough:
        dist.barrier(group=world.steps)
        start = time.perf_counter()
        for _ in range(repeats):
            run()
        times.append((time.perf_counter() - start) / repeats)
        has_time = sum(times) * repeats < budget_s and len(times) < max_times
        is_enough = world.from_main(len(times) >= _MIN_TIMES and not has_time)
    slowest = [max(some) for some in zip(*world.gather(times), strict=True)]
    return float(statistics.median(slowest))


def repeats_for(seconds: float) -> int:
    """Return how often to repeat what takes some seconds, so that the start hardly counts."""
    return min(_MAX_REPEATS, max(1, round(_REPEATED_S / seconds)))


def fit_link(times: MessageTimes) -> Link:
    """Fit a fixed time and a time per byte to the times of messages.

    Each point has the same relative weight: the smallest sizes determine the fixed times, and the
    largest ones the times per byte.
    """
    alpha_s, beta_s = fit_line(times.sizes, times.one_way_s)
    exchange_alpha_s, exchange_beta_s = fit_line(times.sizes, times.exchange_s)
    return Link(
        alpha_s=alpha_s,
        beta_s=beta_s,
        exchange_alpha_s=exchange_alpha_s,
        exchange_beta_s=exchange_beta_s,
        gamma_s=times.add_s_per_byte,
    )


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return (alpha, beta) of alpha + size beta, neither negative, by relative least squares."""
    values = np.array(seconds, float)
    rows = np.stack([np.ones(len(values)), np.array(sizes, float)], axis=1) / values[:, None]
    ones = np.ones(len(values))
    (alpha, beta), *_ = np.linalg.lstsq(rows, ones, rcond=None)
    if alpha < 0:
        alpha, beta = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    elif beta < 0:
        alpha, beta = float(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()), 0.0
    return float(alpha), float(beta)

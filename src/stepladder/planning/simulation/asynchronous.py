"""Simulate workers that do not wait for each other, and their parameter server."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Workers and their server.

    Attributes:
        num: N.
        step_s: mean seconds of a worker's computation.
        spread_frac: its standard deviation over its mean.
        slow: times by which some workers are slower, by number.
        message_s: seconds for gradients to the server, and for weights back, each.
        server_s: seconds in which the server applies a gradient; one at a time.
        max_ahead: steps by which a worker may be ahead of the slowest one before it waits; 0: all
            take each step together; None: no bound.
    """

    num: int
    step_s: float
    spread_frac: float = 0.0
    slow: tuple[tuple[int, float], ...] = ()
    message_s: float = 0.0
    server_s: float = 0.0
    max_ahead: int | None = None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What workers achieve together.

    Attributes:
        updates_per_s: of all workers.
        mean_age, max_age: updates by others between a worker's weights and its gradient.
    """

    updates_per_s: float
    mean_age: float
    max_age: int


def throughput_bound(workers: Workers) -> float:
    """Return the updates per second that cannot be exceeded: min(N / (t + 2 c), 1 / server)."""
    slow = dict(workers.slow)
    rate = sum(
        1 / (workers.step_s * slow.get(idx, 1.0) + 2 * workers.message_s + workers.server_s)
        for idx in range(workers.num)
    )
    return min(rate, 1 / workers.server_s) if workers.server_s > 0 else rate


def simulate_workers(workers: Workers, *, num_updates: int, seed: int = 0) -> Throughput:
    """Return what workers achieve in some updates, by a queue of events.

    Each worker computes, sends its gradient, waits until the server has applied those before it,
    and gets the new weights. The first update of each is not counted: until then, queues fill.

    Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel
        Parameter Server", NeurIPS.
    """
    rng = np.random.default_rng(seed)
    draws = _draws(rng, workers.spread_frac)
    slow = dict(workers.slow)
    factors = [slow.get(idx, 1.0) for idx in range(workers.num)]
    most = workers.max_ahead
    steps = [0] * workers.num
    seen = [0] * workers.num  # updates when a worker got its weights
    counts: deque[int] = deque([workers.num])  # workers by steps, from the slowest
    slowest = 0
    waiting: list[int] = []
    queue = [
        (workers.step_s * factors[idx] * next(draws) + workers.message_s, idx)
        for idx in range(workers.num)
    ]
    heapq.heapify(queue)
    free_s, num, ages, oldest = 0.0, 0, 0, 0
    first = workers.num if num_updates > 2 * workers.num else 0
    first_s = 0.0
    while num < num_updates and queue:
        arrives_s, idx = heapq.heappop(queue)
        free_s = max(free_s, arrives_s) + workers.server_s
        age = num - seen[idx]
        ages, oldest = ages + age, max(oldest, age)
        num += 1
        if num == first:
            first_s, ages = free_s, 0
        place = steps[idx] - slowest
        steps[idx] += 1
        counts[place] -= 1
        if place + 1 == len(counts):
            counts.append(0)
        counts[place + 1] += 1
        waiting.append(idx)
        while counts[0] == 0:
            counts.popleft()
            slowest += 1
        begins_s = free_s + workers.message_s
        kept = []
        for one in waiting:
            if most is not None and steps[one] - slowest > most:
                kept.append(one)
                continue
            seen[one] = num
            took_s = workers.step_s * factors[one] * next(draws) + workers.message_s
            heapq.heappush(queue, (begins_s + took_s, one))
        waiting = kept
    return Throughput(
        updates_per_s=(num - first) / (free_s - first_s),
        mean_age=ages / max(1, num - first),
        max_age=oldest,
    )


def _draws(rng: np.random.Generator, spread_frac: float) -> Iterator[float]:
    """Yield factors of a mean of 1, drawn in blocks."""
    while True:
        block = np.maximum(0.0, 1 + spread_frac * rng.standard_normal(65_536))
        yield from block.tolist()

"""Time all-reduces of every kind between processes, and fit what their messages cost."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from stepladder.machine import num_cores
from stepladder.machine.activity import doing
from stepladder.measuring.ranks.team import Team
from stepladder.parallel.collectives.algorithms import Shape, distinct
from stepladder.parallel.collectives.choice import NATIVE, Choice, crossovers
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.probe import measure_fit, repeats_for
from stepladder.parallel.collectives.race import Race
from stepladder.parallel.collectives.transport import GlooTransport, shared_store
from stepladder.parallel.world import World
from stepladder.records.collectives import Collectives, CollectiveTime, Fit

SIZES: Final = (16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000, 64_000_000)  # bytes
_TIMEOUT: Final = timedelta(seconds=20)  # for a message
_ITEM_BYTES: Final = 4


class Entry(NamedTuple):
    """What is timed: an algorithm, and in how many segments it sends."""

    name: str
    num_segments: int = 1


class Member:
    """One of the processes.

    Args:
        world: of all processes.
    """

    def __init__(self, world: World) -> None:
        # those of this process; if it shares its cores with others, one
        torch.set_num_threads(num_cores() if num_cores() * world.local_size <= _all_cores() else 1)
        self._world = world
        self._executor = Executor(GlooTransport.open(_TIMEOUT), store=shared_store())
        self._race: Race | None = None

    def hosts(self) -> list[str]:
        """Return the host of each rank."""
        return [self._world.host_names[host] for host in self._world.hosts]

    def race(
        self, *, num_bytes: int, entries: Sequence[Entry], num_local: int, num_rounds: int
    ) -> list[list[float]]:
        """Time all-reduces in turn, and begin each round with another one.

        Returns:
            The times of this rank in seconds, shape (len(entries), num_rounds).
        """
        runs = [self._sum(entry, num_bytes, num_local) for entry in entries]
        repeats = self._world.from_main([self._repeats(run) for run in runs])
        times: list[list[float]] = [[] for _ in entries]
        for number in range(num_rounds):
            for place in range(len(runs)):
                entry = (place + number) % len(runs)
                dist.barrier(group=self._world.steps)
                start = time.perf_counter()
                for _ in range(repeats[entry]):
                    runs[entry]()
                times[entry].append((time.perf_counter() - start) / repeats[entry])
        return times

    def fit(self) -> Fit:
        """Measure what `--all-reduce auto` measures when a run starts."""
        return measure_fit(self._executor, self._world)

    def choose(self, *, num_bytes: int, fit: Fit) -> str:
        """Choose an algorithm as `--all-reduce auto` does."""
        if self._race is None:
            shape = Shape(num_ranks=fit.num_ranks, num_local=fit.num_local)
            self._race = Race(Choice(fit, distinct(shape)), self._executor, self._world.steps)
        return self._race(num_bytes).name

    def _repeats(self, run: Callable[[], object]) -> int:
        """Return how often to repeat an all-reduce for one time; runs it twice."""
        run()
        start = time.perf_counter()
        run()
        return repeats_for(time.perf_counter() - start)

    def _sum(self, entry: Entry, num_bytes: int, num_local: int) -> Callable[[], object]:
        tensor = torch.zeros(num_bytes // _ITEM_BYTES)
        if entry.name == NATIVE:
            return lambda: dist.all_reduce(tensor)
        shape = Shape(
            num_ranks=self._world.size, num_local=num_local, num_segments=entry.num_segments
        )
        algorithm = next(one for one in distinct(shape) if one.name == entry.name)
        schedule = algorithm.schedule(shape)
        return lambda: self._executor.sum_(tensor, schedule)


def _all_cores() -> int:
    return os.cpu_count() or 1


def measure_collectives(
    team: Team, *, machine: str, sizes: Sequence[int] = SIZES, num_rounds: int = 7
) -> Collectives:
    """Fit the cost of messages, and time every algorithm at every size beside torch's own.

    Args:
        team: of `Member`s.
        machine: what they run on, in words.
        sizes: of the tensors, in bytes, ascending.
        num_rounds: repetitions of each, in turn.
    """
    hosts, *_ = team.ask("hosts")
    with doing("timing single messages"):
        fit, *_ = team.ask("fit")
    algorithms = distinct(Shape(num_ranks=fit.num_ranks, num_local=fit.num_local))
    choice = Choice(fit, algorithms)
    names: list[str] = []
    found: list[CollectiveTime] = []
    for size in sizes:
        names.append(team.ask("choose", num_bytes=size, fit=fit)[0])
        chosen = [choice.of(algorithm, size) for algorithm in algorithms]
        entries = [Entry(NATIVE), *(Entry(one.name, one.num_segments) for one in chosen)]
        predicted = [None, *(one.predicted_s for one in chosen)]
        with doing(f"timing {len(entries)} algorithms with {size:,} bytes"):
            asked = {"num_bytes": size, "entries": entries, "num_local": fit.num_local}
            answers = team.ask("race", **asked, num_rounds=num_rounds)
        for entry, prediction, *ranks in zip(entries, predicted, *answers, strict=True):
            slowest = tuple(max(times) for times in zip(*ranks, strict=True))
            found.append(
                CollectiveTime(
                    name=entry.name,
                    num_bytes=size,
                    num_segments=entry.num_segments,
                    times_s=slowest,
                    median_s=statistics.median(slowest),
                    predicted_s=prediction,
                )
            )
    *below, (last, _) = crossovers(names, sizes)
    return Collectives(
        backend="gloo",
        hosts=tuple(hosts),
        fit=fit,
        times=tuple(found),
        choice=(*below, (last, 0)),
        machine=machine,
    )

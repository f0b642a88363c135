"""How busy each device of a run is, from one log line to the next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.machine import num_cores
from stepladder.parallel.agreement import sum_of
from stepladder.parallel.world import World
from stepladder.training.clock import Clock, Phase


@dataclass(frozen=True, kw_only=True)
class _Mark:
    wall_s: float
    busy_s: float


@dataclass
class UseMeter:
    """Measures the busy share of the device of this rank.

    On a CPU, that is the CPU time of the process over that of its cores; on a GPU, the time without
    waiting for data.
    """

    _before: _Mark | None = None

    def shares(self, clock: Clock, world: World) -> tuple[float, ...]:
        """Return the busy share of each rank since the last call; a collective.

        Empty at the first call, and with one rank.
        """
        if world.is_alone:
            return ()
        now, before = _mark(clock), self._before
        self._before = now
        if before is None:
            return ()
        wall_s = max(now.wall_s - before.wall_s, 1e-9)
        own = min(1.0, max(0.0, (now.busy_s - before.busy_s) / wall_s))
        keys = [f"{rank:09d}" for rank in range(world.size)]
        sums = sum_of(world, {key: own * (rank == world.rank) for rank, key in enumerate(keys)})
        return tuple(sums[key] for key in keys)


def use_by_rank(shares: Sequence[float], world: World) -> dict[str, list[float] | list[str]]:
    """Return the values of an event: busy shares in the order of ranks, and their hosts."""
    hosts = [world.host_names[host] for host in world.hosts] if world.host_names else []
    return {"busy_frac": [round(share, 4) for share in shares], "hosts": hosts}


def _mark(clock: Clock) -> _Mark:
    if clock.device is None:
        return _Mark(wall_s=time.perf_counter(), busy_s=time.process_time() / num_cores())
    timeline = clock.device.so_far()
    busy_s = timeline.wall_s - timeline.phases_s.get(Phase.DATA_WAIT, 0.0)
    return _Mark(wall_s=timeline.wall_s, busy_s=busy_s)

"""Detect other processes that used the cores during a timing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import psutil

from stepladder.machine.limits import num_cores

MAX_CORES_MISSING: Final = 0.1
"""Mean number of missing cores above which timings cannot be trusted.

Threads that synchronize after every operation wait for the slowest: next to one other busy process,
two threads on two cores were 2 to 60 times as slow.
"""
_IDLE: Final = ("idle", "iowait", "guest", "guest_nice")  # guest times are included in user


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU seconds so far.

    Attributes:
        wall_s: monotonic wall time.
        busy_s: of all cores, including time stolen by a hypervisor.
        own_s: of this process and its children.
    """

    wall_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls) -> Usage:
        """Read the counters."""
        cores = psutil.cpu_times()._asdict()
        busy_s = sum(seconds for name, seconds in cores.items() if name not in _IDLE)
        return cls(wall_s=time.monotonic(), busy_s=busy_s, own_s=_own_s())


def cores_missing(start: Usage, end: Usage, *, usable: int, total: int) -> float:
    """Return the mean number of this process's cores that other processes used.

    Args:
        start: usage at the start.
        end: usage at the end.
        usable: cores that this process may use.
        total: cores of the machine; other processes may use those that are left.

    Returns:
        Cores, in [0, usable].
    """
    wall_s = end.wall_s - start.wall_s
    if wall_s <= 0:
        return 0.0
    others = max(0.0, (end.busy_s - start.busy_s) - (end.own_s - start.own_s)) / wall_s
    return min(float(usable), max(0.0, usable + others - total))


def cores_missing_since(start: Usage) -> float:
    """Return the mean number of this process's cores that others have used since then."""
    usable = num_cores()
    total = psutil.cpu_count() or usable
    return cores_missing(start, Usage.now(), usable=usable, total=total)


def _own_s() -> float:
    process = psutil.Process()
    times = process.cpu_times()
    own_s = float(times.user + times.system + times.children_user + times.children_system)
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has just ended and is included in children_user above
            continue
        own_s += float(times.user + times.system)
    return own_s

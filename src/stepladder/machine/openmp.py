"""Bound how long idle OpenMP threads spin, so that one busy neighbor does not stall a training.

After each operation the threads of a team wait for the next one. libgomp lets them spin for many
milliseconds: beside another busy process they then use the core that the last thread of the team
needs, and a step takes several times as long. Threads that sleep at once are woken up too late on
a quiet machine. No single number of spins is good in both (`bench/results/openmp_waiting.md`),
so the load at the start of the process decides.

Source: libgomp manual, GOMP_SPINCOUNT and OMP_WAIT_POLICY.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Final

WAITING_VARIABLES: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that decide how threads wait; a user's own setting of any of them is left alone."""
QUIET_SPINS: Final = "3000"
BUSY_SPINS: Final = "0"
LOAD: Final = Path("/proc/loadavg")
_OWN_THREADS: Final = Path("/proc/self/task")
_NUM_LOOKS: Final = 7
_LOOK_S: Final = 0.004

_chosen: list[str] = []
_warned: list[str] = []


def bound_spinning(load: Path = LOAD) -> bool:
    """Set GOMP_SPINCOUNT for this process and its children, before torch is loaded.

    Args:
        load: file of the kernel with the number of running threads.

    Returns:
        Whether it was set: not if torch is loaded already, as libgomp has read the variables, or if
        the user has set how threads wait.
    """
    if "torch" in sys.modules or any(name in os.environ for name in WAITING_VARIABLES):
        return False
    spins = BUSY_SPINS if _has_busy_neighbors(load) else QUIET_SPINS
    os.environ["GOMP_SPINCOUNT"] = spins
    _chosen.append(spins)
    return True


def warn_of_spinning(load: Path = LOAD) -> None:
    """Warn once that threads spin, if torch was loaded before and other processes use the cores.

    Args:
        load: file of the kernel with the number of running threads.
    """
    if _warned or "torch" not in sys.modules or waiting_settings():
        return
    if not _has_busy_neighbors(load):
        return
    _warned.append(BUSY_SPINS)
    warnings.warn(
        "other processes use this machine's cores, and torch was imported before stepladder could "
        "set how its threads wait: they wait for each other by spinning, which can make a step "
        f"several times as long. Type `export GOMP_SPINCOUNT={BUSY_SPINS}` before you start "
        "Python; in a notebook, restart the kernel and begin the first cell with "
        f"`%env GOMP_SPINCOUNT={BUSY_SPINS}`.",
        stacklevel=3,
    )


def waiting_settings() -> dict[str, str]:
    """Return the variables that are set, by name."""
    return {name: os.environ[name] for name in WAITING_VARIABLES if name in os.environ}


def user_waiting_settings() -> dict[str, str]:
    """Return the variables that the user has set, by name, without the choice of this process."""
    settings = waiting_settings()
    return {} if _chosen and settings == {"GOMP_SPINCOUNT": _chosen[-1]} else settings


def user_environment() -> dict[str, str]:
    """Return the environment without the choice of this process, for a script run as it is."""
    own = waiting_settings().keys() - user_waiting_settings().keys()
    return {name: value for name, value in os.environ.items() if name not in own}


def _has_busy_neighbors(load: Path) -> bool:
    """Return True if other processes leave fewer free cores than this process may use.

    The kernel's count of running threads is read several times within 30 ms, as most threads run
    for a moment only. Threads of this process are not counted: those of torch may still spin.
    """
    try:
        own = len(os.sched_getaffinity(0))
        counts = []
        for idx in range(_NUM_LOOKS):
            time.sleep(_LOOK_S if idx else 0)
            counts.append(int(load.read_text().split()[3].partition("/")[0]) - _num_own_running())
    except (OSError, AttributeError, IndexError, ValueError):  # not Linux
        return False
    return (os.cpu_count() or own) - statistics.median(counts) < own


def _num_own_running() -> int:
    """Return the number of threads of this process that run now, at least this one."""
    if "torch" not in sys.modules:
        return 1
    num = 0
    for thread in _OWN_THREADS.iterdir():
        try:
            num += (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R"
        except OSError:  # it has just ended
            continue
    return max(1, num)

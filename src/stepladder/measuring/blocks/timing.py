"""Time functions: interleaved, and synchronized with the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all queued work; does nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, including the device's work."""
    wait_for(device)
    start_s = time.perf_counter()
    run()
    wait_for(device)
    return time.perf_counter() - start_s


def time_in_turn(
    functions: Mapping[Name, Callable[[], object]],
    device: torch.device,
    *,
    budget_s: float,
    min_rounds: int = 2,
    max_rounds: int = 50,
) -> dict[Name, list[float]]:
    """Call each function once per round, after a warm-up round, until the time is up.

    Other load on the machine then affects all of them equally.

    Returns:
        Seconds of each function's calls, the same number for all.
    """
    for run in functions.values():  # first calls choose kernels and allocate memory
        run()
    times: dict[Name, list[float]] = {name: [] for name in functions}
    started_s = time.perf_counter()
    for idx in range(max_rounds):
        if idx >= min_rounds and time.perf_counter() - started_s > budget_s:
            break
        for name, run in functions.items():
            times[name].append(seconds_of(run, device))
    return times


def lower_median(times: Sequence[float]) -> float:
    """Return the median of the faster half, because other load on the machine only adds time."""
    ordered = sorted(times)
    return median(ordered[: (len(ordered) + 1) // 2])

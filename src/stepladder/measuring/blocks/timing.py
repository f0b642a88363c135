"""Times of functions: interleaved, with a wait for the device at the borders."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Time one call, the device's work included."""
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
    """Call each function once a round, after a round that is not counted, until the time is up.

    Whatever else the machine does then meets all of them alike.

    Returns:
        Seconds of each function's calls, equally many.
    """
    for run in functions.values():  # first calls choose kernels and take memory
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
    """Return the median of the faster half: other work on the machine only ever adds time."""
    ordered = sorted(times)
    return median(ordered[: (len(ordered) + 1) // 2])

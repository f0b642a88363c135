"""Simulate synchronous steps of many devices: each step ends with its slowest device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stepladder.planning.step.step import StepInputs, step_time
from stepladder.planning.step.stragglers import Floats, Spread


@dataclass(frozen=True, kw_only=True)
class Devices:
    """How devices differ.

    Attributes:
        slow: times by which each device is slower, shape (num_devices,); None: all are alike.
        num_backups: slowest devices of a step that are not waited for.
    """

    slow: Floats | None = None
    num_backups: int = 0


def simulate_steps(
    inputs: StepInputs, *, num_steps: int, seed: int = 0, devices: Devices | None = None
) -> Floats:
    """Return the seconds of each step, shape (num_steps,).

    A device's pass takes its mean time, times a draw of the spread. The messages that are not
    hidden follow the slowest device, as in `step_time`, whose mean this has if devices are alike.
    """
    how = devices or Devices()
    rng = np.random.default_rng(seed)
    quiet = step_time(replace(inputs, spread_frac=0.0, loader_example_s=0.0))
    computed_s = quiet.compute - inputs.update_s
    shape = (num_steps, inputs.num_devices)
    if inputs.spread is Spread.NORMAL:
        draws = 1 + inputs.spread_frac * rng.standard_normal(shape)
    else:
        width = math.sqrt(math.log1p(inputs.spread_frac**2))
        draws = np.exp(width * rng.standard_normal(shape) - width**2 / 2)
    times = computed_s * np.maximum(draws, 0.0)
    if how.slow is not None:
        times = times * how.slow[None]
    if how.num_backups:
        times = np.sort(times, axis=1)[:, : inputs.num_devices - how.num_backups]
    slowest = times.max(axis=1)
    rest = quiet.total_s - computed_s
    local = inputs.micro_batch * inputs.accumulation * inputs.local_devices
    found: Floats = np.maximum(slowest + rest, local * inputs.loader_example_s)
    return found

"""Measure how the time and memory of a step grow with its batch size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from stepladder.data.batch import Batch
from stepladder.measuring.blocks.timing import lower_median, seconds_of, time_in_turn
from stepladder.measuring.model.memory import peak_bytes
from stepladder.measuring.probe import is_out_of_memory
from stepladder.measuring.subject import Subject
from stepladder.measuring.watchdog import PROBE_S, unless_hung

_ROUNDS = 3
_COMPILE_S = 120.0
"""Seconds allowed per batch size if each is compiled again."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Time and memory of a step at several batch sizes.

    Attributes:
        step_s: by batch size, without sizes that did not fit in memory or hung.
        fixed_s, per_example_s: of the fitted line; None if fewer than two sizes fit.
        memory_bytes: peak of one step at the smallest and the largest size; {} if unknown.
    """

    step_s: Mapping[int, float]
    fixed_s: float | None
    per_example_s: float | None
    memory_bytes: Mapping[int, int]


def choose_sizes(
    batch_size: int, *, num_examples: int, example_s: float, budget_s: float, min_size: int = 1
) -> tuple[int, ...]:
    """Return three batch sizes to time: b, 2b, 8b if time allows, else smaller ones.

    Args:
        batch_size: b, the recipe's.
        num_examples: upper bound of the sizes.
        example_s: estimated seconds per example.
        min_size: lower bound of the sizes.
    """
    b = min(batch_size, num_examples)
    fallback: tuple[int, ...] = ()
    for choice in ((b, 2 * b, 8 * b), (b // 2, b, 2 * b), (b // 4, b // 2, b)):
        sizes = tuple(sorted({min(size, num_examples) for size in choice if size >= min_size}))
        if len(sizes) < 3:
            continue
        if sum(sizes) * example_s * (_ROUNDS + 1) <= budget_s:
            return sizes
        fallback = sizes
    smallest = range(min_size, min(min_size + 3, num_examples + 1))
    return fallback or tuple(smallest) or (b,)


def fit_line(sizes: ArrayLike, seconds: ArrayLike) -> tuple[float, float]:
    """Fit t(b) = a + c b by least squares, with a and c at least 0.

    If the unconstrained fit has a negative a, the line goes through the origin; if it has a
    negative c, the line is constant.

    Returns:
        (a, c), in seconds, and seconds per example.
    """
    b, t = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    c, a = np.polyfit(b, t, 1)
    if a < 0:
        return 0.0, float(b @ t / (b @ b))
    if c < 0:
        return float(t.mean()), 0.0
    return float(a), float(c)


def measure_sweep(subject: Subject, sizes: Sequence[int], *, budget_s: float) -> Sweep:
    """Measure time and memory of steps on batches on the device, interleaved over the sizes.

    A size that takes more than ten times the time predicted from smaller ones, and more than some
    seconds, is skipped with all larger ones, as if it did not fit.
    """
    batches, first_s = _batches_that_fit(subject, sizes)
    steps = {
        size: partial(subject.step_on, itertools.repeat(batch)) for size, batch in batches.items()
    }
    times = unless_hung(
        lambda: time_in_turn(
            steps, subject.device, budget_s=budget_s, min_rounds=_ROUNDS - 1, max_rounds=30
        ),
        foretold_s=budget_s + (_ROUNDS + 1) * sum(first_s.values()),
        at_least_s=PROBE_S,
    )
    step_s = {size: lower_median(values) for size, values in (times or {}).items()}
    ends = sorted(step_s)[:: max(1, len(step_s) - 1)]
    if subject.recipe.device.compile and subject.device.type == "cpu":
        ends = []  # allocations of compiled code cannot be measured
    peaks = {
        size: unless_hung(
            partial(peak_bytes, steps[size], subject.device),
            foretold_s=first_s[size],
            at_least_s=PROBE_S,
        )
        for size in ends
    }
    memory = {size: peak for size, peak in peaks.items() if peak is not None}
    if len(step_s) < 2:
        return Sweep(step_s=step_s, fixed_s=None, per_example_s=None, memory_bytes=memory)
    fixed_s, per_example_s = fit_line(list(step_s), list(step_s.values()))
    return Sweep(step_s=step_s, fixed_s=fixed_s, per_example_s=per_example_s, memory_bytes=memory)


def _batches_that_fit(
    subject: Subject, sizes: Sequence[int]
) -> tuple[dict[int, Batch], dict[int, float]]:
    """Read a batch of each size and take a step on it, up to the first one that fails.

    There is no deadline for the smallest: the job's own steps are as large, and succeeded.

    Returns:
        By size, the batch, and the seconds to read it and take the first step.
    """
    at_least_s = _COMPILE_S if subject.recipe.device.compile else PROBE_S
    batches: dict[int, Batch] = {}
    first_s: dict[int, float] = {}

    def take(size: int) -> float:
        def step() -> None:
            batches[size] = subject.to_device(subject.batch_of(size))
            subject.step_on(iter((batches[size],)))

        return seconds_of(step, subject.device)

    for size in sorted(sizes):
        foretold_s = _foretold_s(first_s, size)
        try:
            took_s = unless_hung(partial(take, size), foretold_s=foretold_s, at_least_s=at_least_s)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            took_s = None
        if took_s is None:
            batches.pop(size, None)
            break  # larger ones do not fit either
        first_s[size] = took_s
    return batches, first_s


def _foretold_s(seconds: Mapping[int, float], size: int) -> float:
    """Predict the time of a larger size by t(b) = a + c b, at least the largest known one."""
    if not seconds:
        return math.inf
    if len(seconds) == 1:
        ((known, took_s),) = seconds.items()
        return took_s * size / known
    fixed_s, per_example_s = fit_line(list(seconds), list(seconds.values()))
    return max(fixed_s + per_example_s * size, *seconds.values())

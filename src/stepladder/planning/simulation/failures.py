"""What failures, and machines that are taken away, add to a training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Failures:
    """How often a training is interrupted, and what that costs.

    Attributes:
        every_s: mean seconds between two interruptions of one machine: failures, or a spot machine
            that is taken away.
        machines: number of them; one that is interrupted stops all.
        save_s: seconds of a checkpoint; checkpoint_s: seconds of training between two.
        restart_s: until all train again: a new machine, start, loading.
    """

    every_s: float
    machines: int = 1
    save_s: float = 0.0
    checkpoint_s: float = 600.0
    restart_s: float = 60.0

    @property
    def rate_per_s(self) -> float:
        """Interruptions per second of all machines."""
        return self.machines / self.every_s


def best_interval_s(failures: Failures) -> float:
    """Return the seconds between checkpoints that lose the least: sqrt(2 save / rate).

    Source: Young 1974, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 17.
    """
    return math.sqrt(2 * failures.save_s / failures.rate_per_s)


def expected_s(work_s: float, failures: Failures) -> float:
    """Return the expected seconds of a training of so many seconds of work.

        W / τ (1 / λ + R) (exp(λ (τ + δ)) - 1)

    with λ interruptions a second, R of a restart, τ between checkpoints and δ of one. What is done
    since the last checkpoint is lost, also during a restart of the last one.

    Source: Daly 2006, "A higher order estimate of the optimum checkpoint interval", FGCS 22(3).
    """
    rate, segment_s = failures.rate_per_s, failures.checkpoint_s + failures.save_s
    if rate <= 0:
        return work_s / failures.checkpoint_s * segment_s
    one_s = (1 / rate + failures.restart_s) * math.expm1(rate * segment_s)
    return work_s / failures.checkpoint_s * one_s


def simulate_failures(
    work_s: float, failures: Failures, *, runs: int = 200, seed: int = 0
) -> list[float]:
    """Return the seconds of several trainings, each interrupted at random, ascending.

    An interruption during a restart begins it again only when it is over: restarts are not
    interrupted, as in `expected_s`.
    """
    rng = np.random.default_rng(seed)
    rate, segment_s = failures.rate_per_s, failures.checkpoint_s + failures.save_s
    num_segments = work_s / failures.checkpoint_s
    found = []
    for _ in range(runs):
        total_s = 0.0
        left = num_segments
        while left > 0:
            share = min(1.0, left)
            until_s = float(rng.exponential(1 / rate))
            if until_s < share * segment_s:
                total_s += until_s + failures.restart_s
            else:
                total_s += share * segment_s
                left -= share
        found.append(total_s)
    return sorted(found)

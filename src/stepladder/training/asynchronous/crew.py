"""The workers as their server sees them: it gives them work, and takes what they send."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from stepladder.config.recipe import Recipe
from stepladder.task.contract import Task
from stepladder.training.asynchronous.contribution import Contribution, Contributor, Work
from stepladder.training.setup.build import Sources

_SPREAD = 0.1  # of the logarithm of the time that a simulated worker needs


class Arrival(NamedTuple):
    """What a worker has sent.

    Attributes:
        contribution: None if the worker has ended, and was started again.
        at_s: seconds since the beginning; simulated ones in a simulation.
    """

    worker: int
    contribution: Contribution | None
    at_s: float


class Crew(Protocol):
    """Workers, by number from 0."""

    @property
    def num(self) -> int:
        """Return how many there are."""

    def begin(self, worker: int, work: Work, weights: Tensor, statistics: Tensor) -> None:
        """Let a worker begin something, from these weights, which may change afterwards."""

    def next(self, num_seen: int) -> Arrival | None:
        """Wait a short time for a worker; None: nothing has come.

        Args:
            num_seen: examples used so far, from where a worker that is started again reads.

        Raises:
            StepladderError: what a worker has raised.
            ResourceError: if workers end again and again.
        """

    def close(self) -> None:
        """End all workers."""


class SimulatedCrew:
    """Workers whose contributions this process computes, in the order of a simulated clock.

    A step on a part of the global batch takes one second, times a factor drawn from the seed, and
    times `asynchronous.stragglers` for the last worker. So a run is equal to the bit each time.

    Args:
        at: epoch, and examples of it that the run has used so far.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        sources: Sources,
        device: torch.device,
        *,
        at: tuple[int, int],
    ) -> None:
        config = recipe.asynchronous
        self._random = random.Random(f"{recipe.seed}-{at}")
        self._contributors = [
            Contributor(recipe, task, sources, worker=worker, device=device, at=at)
            for worker in range(config.workers)
        ]
        # parts of a batch take as long as they are large
        self._work_s = config.workers / config.num_in_batch
        self._slow = [1.0] * (config.workers - 1) + [config.stragglers]
        self._now_s = 0.0
        self._events: list[tuple[float, int, Work, Tensor, Tensor]] = []

    @property
    def num(self) -> int:
        """Return the number of workers."""
        return len(self._contributors)

    def begin(self, worker: int, work: Work, weights: Tensor, statistics: Tensor) -> None:
        """Note when a worker will have done its work; see `Crew`."""
        took_s = (
            work.num_steps
            * self._work_s
            * self._slow[worker]
            * self._random.lognormvariate(0.0, _SPREAD)
        )
        event = (self._now_s + took_s, worker, work, weights.clone(), statistics.clone())
        heapq.heappush(self._events, event)

    def next(self, num_seen: int) -> Arrival | None:  # noqa: ARG002
        """Compute what is done first; see `Crew`."""
        self._now_s, worker, work, weights, statistics = heapq.heappop(self._events)
        found = self._contributors[worker].compute(work, weights, statistics)
        return Arrival(worker, found, self._now_s)

    def close(self) -> None:
        """Stop reading."""
        for one in self._contributors:
            one.close()

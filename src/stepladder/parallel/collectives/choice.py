"""Choose the all-reduce for a tensor of some size, by the predicted times of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from stepladder.parallel.collectives.algorithms import ALGORITHMS, Algorithm, Shape
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.collectives.schedule import Schedule
from stepladder.records.collectives import Fit

NATIVE: Final = "native"
SEGMENTS: Final = (1, 2, 4, 8, 16, 32)


def native_s(fit: Fit, num_bytes: int) -> float:
    """Return the seconds of torch's own all-reduce, between measured sizes by their logarithms.

    Beyond the largest one, the time grows with the size.
    """
    size = np.log(max(num_bytes, 1))
    sizes, seconds = np.log(fit.native_sizes), np.log(fit.native_s)
    beyond = max(0.0, float(size - sizes[-1]))
    return float(np.exp(np.interp(size, sizes, seconds) + beyond))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """An algorithm for a size.

    Attributes:
        schedule: None: torch's own all-reduce.
        predicted_s: by the fit.
        num_segments: parts of the tensor that follow each other; 1: it is sent as a whole.
    """

    name: str
    schedule: Schedule | None
    predicted_s: float
    num_segments: int = 1


@dataclass
class Choice:
    """Chooses among algorithms by their predicted times; keeps what it has predicted.

    Attributes:
        fit: of the ranks at hand.
        algorithms: to choose from.
        has_native: torch's own is one of them.
    """

    fit: Fit
    algorithms: Sequence[Algorithm] = ALGORITHMS
    has_native: bool = True
    _schedules: dict[tuple[str, int], Schedule] = field(default_factory=dict)
    _chosen: dict[int, Chosen] = field(default_factory=dict)

    def __call__(self, num_bytes: int) -> Chosen:
        """Return the fastest of all."""
        if num_bytes not in self._chosen:
            self._chosen[num_bytes] = self.fastest(num_bytes, 1)[0]
        return self._chosen[num_bytes]

    def fastest(self, num_bytes: int, most: int) -> list[Chosen]:
        """Return the fastest algorithms, in order."""
        options = [self.of(algorithm, num_bytes) for algorithm in self.algorithms]
        if self.has_native:
            seconds = native_s(self.fit, num_bytes)
            options.append(Chosen(name=NATIVE, schedule=None, predicted_s=seconds))
        return sorted(options, key=lambda one: one.predicted_s)[:most]

    def of(self, algorithm: Algorithm, num_bytes: int) -> Chosen:
        """Return the fastest schedule of one algorithm: trees may send segments."""
        found = []
        for segments in SEGMENTS if algorithm.has_segments else (1,):
            schedule = self._schedule(algorithm, segments)
            seconds = schedule_s(schedule, num_bytes, self.fit.link)
            found.append(
                Chosen(
                    name=algorithm.name,
                    schedule=schedule,
                    predicted_s=seconds,
                    num_segments=segments,
                )
            )
        return min(found, key=lambda one: one.predicted_s)

    def _schedule(self, algorithm: Algorithm, num_segments: int) -> Schedule:
        key = (algorithm.name, num_segments)
        if key not in self._schedules:
            self._schedules[key] = algorithm.schedule(
                Shape(
                    num_ranks=self.fit.num_ranks,
                    num_local=self.fit.num_local,
                    num_segments=num_segments,
                )
            )
        return self._schedules[key]


def crossovers(names: Sequence[str], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Return the names of the fastest, each with the largest of the sizes for which it is so.

    Args:
        names: of the fastest at each size.
        sizes: in bytes, ascending.
    """
    found: list[tuple[str, int]] = []
    for name, size in zip(names, sizes, strict=True):
        if found and found[-1][0] == name:
            found[-1] = (name, size)
        else:
            found.append((name, size))
    return found

"""Choose the all-reduce for a size: those that the fit expects to be fast are timed once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist

from stepladder.parallel.collectives.choice import Choice, Chosen
from stepladder.parallel.collectives.executor import Executor

_MOST: Final = 3  # that are timed
_CLOSE: Final = 2.5  # only those that the fit expects to take at most this many times as long
_BUDGET_S: Final = 0.15  # of each
_MIN_TIMES: Final = 3
_MAX_TIMES: Final = 15
_ITEM_BYTES: Final = 4


@dataclass
class Race:
    """Chooses among the algorithms with the shortest predicted times, by their measured times.

    A fit of two numbers cannot tell algorithms apart that are close to each other. All ranks call
    this in the same order, with the same sizes.

    Attributes:
        choice: predicts the times.
        executor: runs the schedules.
        group: of all ranks, in which torch's own all-reduce runs.
    """

    choice: Choice
    executor: Executor
    group: Any = None
    _chosen: dict[int, Chosen] = field(default_factory=dict)

    def __call__(self, num_bytes: int) -> Chosen:
        """Return the fastest for a size, on all ranks the same; the first call for it times some.

        Its predicted time is still that of the fit.
        """
        if num_bytes not in self._chosen:
            best, *others = self.choice.fastest(num_bytes, _MOST)
            close = [one for one in others if one.predicted_s <= _CLOSE * best.predicted_s]
            self._chosen[num_bytes] = self._first([best, *close], num_bytes) if close else best
        return self._chosen[num_bytes]

    def _first(self, options: list[Chosen], num_bytes: int) -> Chosen:
        tensor = torch.zeros(max(1, num_bytes // _ITEM_BYTES))
        runs = [self._run(one, tensor) for one in options]
        for run in runs:
            run()
        slowest_s = max(one.predicted_s for one in options)
        least = 1 if slowest_s > _BUDGET_S else _MIN_TIMES
        num_times = min(_MAX_TIMES, max(least, int(_BUDGET_S / max(slowest_s, 1e-9))))
        times: list[list[float]] = [[] for _ in runs]
        for _ in range(num_times):
            for idx, run in enumerate(runs):
                dist.barrier(group=self.group)
                start = time.perf_counter()
                run()
                times[idx].append(time.perf_counter() - start)
        medians = torch.tensor([statistics.median(each) for each in times], dtype=torch.float64)
        dist.all_reduce(medians, op=dist.ReduceOp.MAX, group=self.group)  # the slowest rank counts
        return options[int(medians.argmin())]

    def _run(self, one: Chosen, tensor: torch.Tensor) -> Callable[[], object]:
        schedule = one.schedule
        if schedule is None:
            return lambda: dist.all_reduce(tensor, group=self.group)
        return lambda: self.executor.sum_(tensor, schedule)

"""Average DDP's gradients with an own all-reduce, in a thread beside the backward pass."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.schedule import Schedule

Choose = Callable[[int], Schedule | None]
"""Returns the schedule for a number of bytes; None: torch's own all-reduce."""


class GradientSum:
    """Averages buckets, for a communication hook of DistributedDataParallel.

    Buckets are added up one after the other in the order in which they are ready, by one thread:
    the backward pass continues meanwhile, and DDP waits at its end.

    Args:
        executor: of this rank; only this object may use it.
        choose: the same on all ranks.
        group: of all ranks, for torch's own all-reduce; the main thread must not use it, as layers
            such as a synchronised BatchNorm exchange tensors during the backward pass.
        dtype: type in which gradients are sent and added up; None: their own.
    """

    def __init__(
        self,
        executor: Executor,
        choose: Choose,
        *,
        group: Any,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._executor = executor
        self._choose = choose
        self._group = group
        self._dtype = dtype
        self._todo: queue.SimpleQueue[tuple[Tensor, torch.futures.Future[Tensor]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, name="stepladder-sums", daemon=True).start()

    def begin(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        """Begin to average a bucket over all ranks, in its own memory."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._todo.put((buffer, future))
        return future

    def _work(self) -> None:
        while True:
            buffer, future = self._todo.get()
            try:
                future.set_result(self._average(buffer))
            except BaseException as error:
                future.set_exception(error)  # type: ignore[arg-type]

    def _average(self, buffer: Tensor) -> Tensor:
        buffer.div_(self._executor.transport.size)  # before the sum, as DDP does
        sent = buffer if self._dtype is None else buffer.to(self._dtype)
        schedule = self._choose(sent.nbytes)
        if schedule is None:
            dist.all_reduce(sent, group=self._group)
        else:
            self._executor.sum_(sent, schedule)
        if sent is not buffer:
            buffer.copy_(sent)
        return buffer

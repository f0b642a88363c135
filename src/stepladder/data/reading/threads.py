"""Threads that read and decode, with results in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from stepladder.machine import num_cores

THREAD_NAME = "stepladder-read"

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(
    pool: Executor, function: Callable[[T], R], items: Iterable[T], *, ahead: int
) -> Generator[R, None, None]:
    """Yield function(item) for each item, in order, with at most `ahead` in flight.

    Unlike Executor.map, memory does not grow with the number of items, and pending calls are
    cancelled when the caller stops.
    """
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def num_reading_threads(named: int, default: int | None) -> int:
    """Return the number of reading threads; 0: the caller's thread reads without prefetching.

    Args:
        named: number set by the user; 0 if not set.
        default: default of the source, see `Source.default_threads`.
    """
    most = num_cores() if default is None else default
    return (named or most) if most else 0


class Inline(Executor):
    """Executor that runs each call immediately, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call and return a completed future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def reading_threads(num_threads: int) -> Iterator[Executor]:
    """Yield an executor of threads that stop with the block; pending calls are cancelled."""
    if num_threads == 0:
        yield Inline()
        return
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=THREAD_NAME)
    try:
        yield pool
    finally:
        # The garbage collector may close an iterator from one of these threads, which cannot wait
        # for itself.
        is_own = threading.current_thread().name.startswith(THREAD_NAME)
        pool.shutdown(wait=not is_own, cancel_futures=True)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread per call, as pictures are already processed in parallel."""
    import torch

    num_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_before)

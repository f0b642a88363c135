"""Threads that read and decode, and work that they give back in order."""

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
    """Yield function(item) for each item, in order, with at most `ahead` under way.

    Unlike Executor.map, memory does not grow with the number of items, and what has not begun
    is cancelled when the caller stops.
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
    """Return how many threads read; 0: the caller's own, as the data comes.

    Args:
        named: by the user; 0: none is.
        default: of the source, see `Source.default_threads`.
    """
    most = num_cores() if default is None else default
    return (named or most) if most else 0


class Inline(Executor):
    """Work at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Work, and give the result as done."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def reading_threads(num_threads: int) -> Iterator[Executor]:
    """Give threads that end with the block; what they have not begun is dropped."""
    if num_threads == 0:
        yield Inline()
        return
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix=THREAD_NAME)
    try:
        yield pool
    finally:
        # The garbage collector may end an iterator from one of its own threads, which cannot wait
        # for itself.
        is_own = threading.current_thread().name.startswith(THREAD_NAME)
        pool.shutdown(wait=not is_own, cancel_futures=True)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch from splitting each resize over all cores: pictures already fill them."""
    import torch

    num_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_before)

"""Work in threads, take the results in order, hold few of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future
from typing import TypeVar

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

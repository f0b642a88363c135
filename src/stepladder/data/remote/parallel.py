"""Run tasks in parallel on daemon threads, which do not block the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable


def _pass_over(_: int) -> None:
    """Ignore progress."""


def run_all(
    tasks: Iterable[Callable[[], None]],
    *,
    num_threads: int,
    waits: bool = False,
    on_done: Callable[[int], None] = _pass_over,
) -> None:
    """Run tasks on num_threads threads, including this one; raise the first error.

    After an error no more tasks are started.

    Args:
        waits: whether to wait for running tasks after an error.
        on_done: called with the number of finished tasks after each task of this thread and at the
            end.
    """
    waiting = deque(tasks)
    total = num_left = len(waiting)
    failures: list[BaseException] = []
    changed = threading.Condition()

    def work(on_done: Callable[[int], None] = _pass_over) -> None:
        nonlocal num_left
        while not failures:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            failure: BaseException | None = None
            try:
                task()
            except BaseException as error:  # raised in the calling thread
                failure = error
            with changed:
                num_left -= 1
                if failure is not None:
                    failures.append(failure)
                    num_left -= len(waiting)
                    waiting.clear()
                changed.notify_all()
            if not failures:
                on_done(total - num_left)

    for _ in range(min(num_threads, num_left) - 1):
        threading.Thread(target=work, name="stepladder-transfer", daemon=True).start()
    try:
        work(on_done)
    except BaseException as error:  # raised by on_done
        with changed:
            failures.append(error)
            num_left -= len(waiting)
            waiting.clear()
    with changed:
        changed.wait_for(lambda: num_left == 0 or (failures and not waits))
    if failures:
        raise failures[0]
    on_done(total)

"""Several requests at once, on threads that nobody has to wait for at the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable


def _pass_over(_: int) -> None:
    """Take no notice of how many are done."""


def run_all(
    tasks: Iterable[Callable[[], None]],
    *,
    num_threads: int,
    waits: bool = False,
    on_done: Callable[[int], None] = _pass_over,
) -> None:
    """Run tasks on so many threads, this one among them; raise the first failure.

    After a failure no task is begun.

    Args:
        waits: for those under way; False: they are left to themselves.
        on_done: told how many are done, after each that this thread did, and at the end.
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
            except BaseException as error:  # told to the caller, whatever it is
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
    except BaseException as error:  # of who was told
        with changed:
            failures.append(error)
            num_left -= len(waiting)
            waiting.clear()
    with changed:
        changed.wait_for(lambda: num_left == 0 or (failures and not waits))
    if failures:
        raise failures[0]
    on_done(total)

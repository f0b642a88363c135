"""Pass a signal of the launcher on to ranks on other machines, through a file in the run folder."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def passed_on(file: Path) -> Iterator[list[int]]:
    """Write the number of a SIGINT or SIGTERM into a file during a block.

    A second signal raises KeyboardInterrupt. Python delivers signals only to the main thread: in
    any other thread this does nothing.

    Yields:
        The signals so far.
    """
    numbers: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield numbers
        return

    def stop(number: int, frame: object) -> None:  # noqa: ARG001
        if numbers:
            raise KeyboardInterrupt
        numbers.append(number)
        file.write_text(str(number), encoding="utf-8")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def asked_to_stop(file: Path) -> int | None:
    """Return the number of the signal that the launcher got, or None."""
    try:
        return int(file.read_text(encoding="utf-8") or 0) or None
    except (OSError, ValueError):
        return None

"""What the process is doing, and a thread that reports it when nothing else is printed.

Code that may take seconds says what it does with `doing`. Displays and commands print through
streams that call `printed`. A `Heartbeat` reports the current activity if nothing was printed for a
while.

If several processes train together, `standing` distinguishes a process that hangs in its own work,
such as a disk that does not answer, from one that waits for the others. Work that may hang is
declared with `on_its_own`, and reports each part that is done with `moved`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, RLock, Thread, current_thread, main_thread
from typing import Final

FIRST_S = 1.5
"""Seconds without output after which the first line is due."""
SILENCE_S = 8.0
"""Seconds without output after which another line is due."""
_TICK_S = 0.25
_MOST_LEVELS = 2


@dataclass(kw_only=True)
class Activity:
    """Something that takes time.

    Attributes:
        what: in words, such as `evaluating val`.
        done, total: number of items; None: not counted.
        left_s: estimated seconds left when it began; None: unknown.
    """

    what: str
    total: int | None = None
    done: int = 0
    left_s: float | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def estimate_s(self) -> float | None:
        """Return the estimated seconds left, or None."""
        elapsed_s = self.elapsed_s
        if self.total is not None and self.done > 0:
            return elapsed_s * max(self.total - self.done, 0) / self.done
        is_over = self.left_s is None or elapsed_s >= self.left_s
        return None if is_over or self.left_s is None else self.left_s - elapsed_s


@dataclass(frozen=True, kw_only=True)
class Report:
    """The current activity, for a display.

    Attributes:
        what: the innermost activities, outer first.
        elapsed_s: of the innermost one.
        left_s: of the innermost one that has an estimate; None: unknown.
        done, total: of the innermost one; None: not counted.
    """

    what: str
    elapsed_s: float
    left_s: float | None = None
    done: int = 0
    total: int | None = None


Sink = Callable[[Report], None]


class _State:
    def __init__(self) -> None:
        self.lock = RLock()
        self.activities: list[Activity] = []
        self.own_work: list[str] = []
        self.num_moves = 0
        self.printed_at = time.monotonic()
        self.has_printed = False
        self.is_silent = False
        self.hearts: list[Heartbeat] = []  # entered, the outermost first; its thread reports


_STATE = _State()


@contextmanager
def doing(
    what: str, *, total: int | None = None, left_s: float | None = None
) -> Iterator[Activity]:
    """Declare what runs in the block, so that it can be reported.

    Args:
        what: in words, such as `evaluating val`.
        total: number of items; the block counts them in `done`.
        left_s: estimated duration in seconds.
    """
    activity = Activity(what=what, total=total, left_s=left_s)
    with _STATE.lock:
        _STATE.activities.append(activity)
    moved()
    try:
        yield activity
    finally:
        with _STATE.lock, suppress(ValueError):
            _STATE.activities.remove(activity)
        moved()


def printed() -> None:
    """Note that something was printed now."""
    _STATE.printed_at = time.monotonic()
    _STATE.has_printed = True


def be_silent(*, is_silent: bool) -> None:
    """Switch all heartbeats off or on, such as in a process that has no log of its own yet."""
    _STATE.is_silent = is_silent


def report() -> Report:
    """Return the current activity."""
    with _STATE.lock:
        activities = list(_STATE.activities)
    if not activities:
        return Report(what="working", elapsed_s=time.monotonic() - _STATE.printed_at)
    last = activities[-1]
    estimates = (activity.estimate_s() for activity in reversed(activities))
    return Report(
        what=": ".join(activity.what for activity in activities[-_MOST_LEVELS:]),
        elapsed_s=last.elapsed_s,
        left_s=next((left for left in estimates if left is not None), None),
        done=last.done,
        total=last.total,
    )


def is_reported() -> bool:
    """Return True if a heartbeat reports what the process does."""
    return bool(_STATE.hearts)


_OTHERS: Final = ""  # in place of own work: the process waits for another one


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far the main thread has come.

    Attributes:
        what: it does by itself, in words; None: nothing that was declared.
        waits_for_others: it waits for another process.
        mark: changes whenever something is done.
    """

    what: str | None
    waits_for_others: bool
    mark: tuple[int, ...]


@contextmanager
def on_its_own(what: str) -> Iterator[None]:
    """Declare work of the main thread that may hang, and in which no other process is waited for.

    It must not read from a GPU, which may wait for another process. Does nothing in other threads.

    Args:
        what: in words, such as `writing a checkpoint`.
    """
    if current_thread() is not main_thread():
        yield
        return
    _STATE.own_work.append(what)
    moved()
    try:
        yield
    finally:
        _STATE.own_work.pop()
        moved()


def waiting_for_others() -> AbstractContextManager[None]:
    """Declare that the main thread waits for another process in the block."""
    return on_its_own(_OTHERS)


def moved() -> None:
    """Note that a part of the work is done, such as a file."""
    _STATE.num_moves += 1


def standing() -> Standing:
    """Return how far the main thread has come."""
    with _STATE.lock:
        done = [activity.done for activity in _STATE.activities]
    own_work = _STATE.own_work[-1:]  # one operation: the main thread changes the list
    what = own_work[0] if own_work else None
    return Standing(
        what=what or None,
        waits_for_others=what == _OTHERS,
        mark=(_STATE.num_moves, *done),
    )


class Heartbeat:
    """Reports the current activity when nothing was printed for some seconds.

    Within another heartbeat, the outer one reports to this sink for the time of the block. One that
    is entered again within itself continues.

    Args:
        sink: called in the thread of the heartbeat; None: nothing is reported.
        every_s: seconds without output until a report is due; None: SILENCE_S.
        first_s: the same, until something has been printed; None: FIRST_S.
    """

    def __init__(
        self, sink: Sink | None, *, every_s: float | None = None, first_s: float | None = None
    ) -> None:
        self.sink = sink
        self.every_s = SILENCE_S if every_s is None else every_s
        self._first_s = FIRST_S if first_s is None else first_s
        self._stopping = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Heartbeat:
        _STATE.hearts.append(self)
        if len(_STATE.hearts) == 1:
            _STATE.printed_at, _STATE.has_printed = time.monotonic(), False
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        _STATE.hearts.pop()
        if not _STATE.hearts:
            self.stop()

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = Thread(target=self._run, name="stepladder-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopping.wait(_TICK_S):
            hearts = _STATE.hearts[-1:]  # one operation: another thread changes the list
            heart = hearts[0] if hearts else None
            if heart is None or heart.sink is None or _STATE.is_silent:
                continue
            limit_s = heart.every_s if _STATE.has_printed else self._first_s
            if time.monotonic() - _STATE.printed_at >= limit_s:
                printed()
                with suppress(Exception):  # a report must not end the work
                    heart.sink(report())


@contextmanager
def paused() -> Iterator[None]:
    """Stop the thread of the heartbeat in the block, which may fork processes."""
    if not _STATE.hearts:
        yield
        return
    heart = _STATE.hearts[0]
    heart.stop()
    try:
        yield
    finally:
        printed()
        heart.start()

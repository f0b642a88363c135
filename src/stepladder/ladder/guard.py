"""What goes wrong in a trial ends the trial, not the climb."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import torch

from stepladder.errors import DivergedError, InterruptedRun, StepladderError
from stepladder.measure.probe import is_out_of_memory
from stepladder.train.evaluate import EvaluationCancelled

MIN_DEADLINE_S: Final = 60.0
TIMES_EXPECTED: Final = 20.0
_AGAIN_S: Final = 5.0
"""Clearing up may hang as well: a reading thread that is waited for. It is interrupted again."""


class Hung(BaseException):
    """What was begun is not done long after it should be.

    No Exception, which a user's `except Exception` would keep.
    """


class TooSlow(StepladderError):  # noqa: N818  (a finding)
    """A rung is so much slower that more blocks would say nothing new."""


class TrialFailed(StepladderError):  # noqa: N818  (a finding)
    """A trial ended before its verdict; `what` says why, in words that stand in a table cell."""


class Watchdog:
    """Interrupts what takes far longer than expected; in the main thread only.

    It works at the level of Python: a single operation of torch ends first.

    Args:
        min_deadline_s: patience, however little is expected.
    """

    def __init__(self, min_deadline_s: float = MIN_DEADLINE_S) -> None:
        self._min_deadline_s = min_deadline_s
        self._is_on = False
        self.deadline_s = min_deadline_s

    def expect(self, seconds: float) -> None:
        """Begin something new that should take so many seconds: 20 times that are granted."""
        self.deadline_s = max(self._min_deadline_s, TIMES_EXPECTED * seconds)
        if self._is_on:
            signal.setitimer(signal.ITIMER_REAL, self.deadline_s, _AGAIN_S)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the block; a timer of someone else's goes on after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._bark)
        started = time.monotonic()
        left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, self.deadline_s, _AGAIN_S)
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            if left_s:
                left_s = max(0.001, left_s - (time.monotonic() - started))
                signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)

    def _bark(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._is_on:
            raise Hung


@contextmanager
def guarded(watchdog: Watchdog) -> Iterator[None]:
    """Turn whatever ends a trial early into TrialFailed, and free what it held.

    Ctrl-C and other requests to end pass through.

    Raises:
        TrialFailed: with the reason.
    """
    failure: str | None = None
    try:
        with watchdog.watching():
            yield
    except (InterruptedRun, EvaluationCancelled):
        raise
    except Hung:
        failure = f"hung: not done after {watchdog.deadline_s:.0f} s"
    except Exception as error:
        failure = failure_words(error)
        _forget_frames(error)
    if failure is not None:
        free_memory()
        raise TrialFailed(failure)


def failure_words(error: BaseException) -> str:
    """Say what went wrong, short enough for a table cell."""
    if is_out_of_memory(error):
        return "ran out of memory"
    if isinstance(error, DivergedError):
        return "diverged: the loss is not a finite number"
    if isinstance(error, StepladderError):
        return error.what
    first = next(iter(str(error).splitlines()), "")
    return f"raised {type(error).__name__}: {first}" if first else f"raised {type(error).__name__}"


def free_memory() -> None:
    """Give back what nobody holds any more, on the device too."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _forget_frames(error: BaseException) -> None:
    """Drop the traceback: its frames hold the trial's models and batches."""
    seen: Any = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__

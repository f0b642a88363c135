"""Interrupt code that hangs: such a probe is skipped, and such a trial is dropped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, Generic, TypeVar

from stepladder.errors import StepladderError
from stepladder.measuring.probe import is_out_of_memory
from stepladder.training.evaluate import EvaluationCancelled

Value = TypeVar("Value")

MIN_DEADLINE_S: Final = 60.0
TIMES_EXPECTED: Final = 20.0
PROBE_S: Final = 10.0
"""Minimum deadline of a probe, in seconds."""
_TIMES_FORETOLD: Final = 10.0
_TIMES_BEYOND: Final = 5.0  # times the expected time, for work to end after its budget
_AGAIN_S: Final = 5.0
"""Cleanup may hang too, for example waiting for a reading thread: it is interrupted again."""


class Hung(BaseException):
    """Work was not done long after its expected time.

    Not an Exception, which a user's `except Exception` would catch.
    """


class Watchdog:
    """Interrupts work that takes far longer than expected; only in the main thread.

    It interrupts Python code: a running torch operation is not interrupted.

    Args:
        min_deadline_s: the minimum deadline.
        time_left: returns the seconds left of a budget; None: no budget.

    Attributes:
        deadline_s: deadline of the current work, in seconds.
        is_by_budget: the deadline is set by the budget: work that exceeds it may not hang.
    """

    def __init__(
        self,
        min_deadline_s: float = MIN_DEADLINE_S,
        *,
        time_left: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._min_deadline_s = min_deadline_s
        self._time_left = time_left
        self._is_on = False
        self.deadline_s = min_deadline_s
        self.is_by_budget = False

    def expect(self, seconds: float) -> None:
        """Start work that should take this many seconds, with a deadline of 20 times that.

        With a budget, at most what is left of it plus five times the expected time.
        """
        within_s = max(0.0, self._time_left()) + _TIMES_BEYOND * seconds
        self.grant(min(TIMES_EXPECTED * seconds, within_s))
        self.is_by_budget = within_s < TIMES_EXPECTED * seconds

    def grant(self, seconds: float) -> None:
        """Start work with a deadline of this many seconds."""
        self.is_by_budget = False
        self.deadline_s = max(self._min_deadline_s, seconds)
        if self._is_on:
            signal.setitimer(signal.ITIMER_REAL, self.deadline_s, _AGAIN_S)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the block; restart another timer that was set before it."""
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


def unless_hung(run: Callable[[], Value], *, foretold_s: float, at_least_s: float) -> Value | None:
    """Return the result of a call, or None if it takes more than ten times the predicted time.

    Args:
        foretold_s: predicted seconds; infinite: not watched.
        at_least_s: the minimum deadline.
    """
    if math.isinf(foretold_s):
        return run()
    watchdog = Watchdog(max(at_least_s, _TIMES_FORETOLD * foretold_s))
    try:
        with watchdog.watching():
            return run()
    except Hung:
        return None


_LOST: Final = "ran out of memory, or hung"


@dataclass(frozen=True, kw_only=True)
class Attempt(Generic[Value]):
    """The result of a probe.

    Attributes:
        value: None if it failed or found nothing.
        failed_because: why it failed, as a predicate that follows the name of the probe.
    """

    value: Value | None = None
    failed_because: str = _LOST


def attempt(
    measure: Callable[[], Value | None], *, foretold_s: float, at_least_s: float
) -> Attempt[Value]:
    """Run a probe, which fails if memory runs out, it hangs, or it raises an error.

    A job that can be trained is profiled, even if a probe does not work with its model.

    Args:
        foretold_s, at_least_s: see `unless_hung`.

    Raises:
        StepladderError: an error that the user can act on.
        EvaluationCancelled: if the user cancelled.
    """
    try:
        value = unless_hung(measure, foretold_s=foretold_s, at_least_s=at_least_s)
    except (StepladderError, EvaluationCancelled):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            return Attempt()
        first = next(iter(str(error).splitlines()), "")
        return Attempt(failed_because=f"raised {type(error).__name__}: {first}")
    return Attempt(value=value)

"""An end for what hangs: a probe that waits for ever is left out, and a trial is dropped."""

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
"""Seconds that a probe is granted, however little is foretold."""
_TIMES_FORETOLD: Final = 10.0
_TIMES_BEYOND: Final = 5.0  # what is expected, that work may end after its budget
_AGAIN_S: Final = 5.0
"""Clearing up may hang as well: a reading thread that is waited for. It is interrupted again."""


class Hung(BaseException):
    """What was begun is not done long after it should be.

    No Exception, which a user's `except Exception` would keep.
    """


class Watchdog:
    """Interrupts what takes far longer than expected; in the main thread only.

    It works at the level of Python: a single operation of torch ends first.

    Args:
        min_deadline_s: patience, however little is expected.
        time_left: gives the seconds that are left of a budget; none: there is no end to it.

    Attributes:
        deadline_s: seconds that what was begun last may take.
        is_by_budget: a budget set them: what takes longer need not hang.
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
        """Begin something new that should take so many seconds: 20 times that are granted.

        Of a budget, what is left of it and five times what is expected, where that is less.
        """
        within_s = max(0.0, self._time_left()) + _TIMES_BEYOND * seconds
        self.grant(min(TIMES_EXPECTED * seconds, within_s))
        self.is_by_budget = within_s < TIMES_EXPECTED * seconds

    def grant(self, seconds: float) -> None:
        """Begin something new that may take so many seconds and no more."""
        self.is_by_budget = False
        self.deadline_s = max(self._min_deadline_s, seconds)
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


def unless_hung(run: Callable[[], Value], *, foretold_s: float, at_least_s: float) -> Value | None:
    """Return what a call gives, or None where it takes more than ten times what was foretold.

    Args:
        foretold_s: infinite where nothing is known: it is not watched then.
        at_least_s: granted however little was foretold.
    """
    if math.isinf(foretold_s):
        return run()
    watchdog = Watchdog(max(at_least_s, _TIMES_FORETOLD * foretold_s))
    try:
        with watchdog.watching():
            return run()
    except Hung:
        return None


_LOST: Final = "took all memory, or hung"


@dataclass(frozen=True, kw_only=True)
class Attempt(Generic[Value]):
    """What a probe gave.

    Attributes:
        value: None where it failed, or found nothing.
        failed_because: why it failed, in words that follow the name of what was probed.
    """

    value: Value | None = None
    failed_because: str = _LOST


def attempt(
    measure: Callable[[], Value | None], *, foretold_s: float, at_least_s: float
) -> Attempt[Value]:
    """Try a probe, which fails where memory runs out, it hangs, or anything in it raises.

    A job whose steps can be taken is measured, whatever a probe of ours cannot do with its model.

    Args:
        foretold_s, at_least_s: see `unless_hung`.

    Raises:
        StepladderError: what a user can act on is told.
        EvaluationCancelled: someone asked for the end.
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

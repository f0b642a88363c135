"""Time limits of probes; the watchdog itself is tested with the trials that it ends."""

from __future__ import annotations

import math
import signal
import time

import pytest

from stepladder.errors import DataError
from stepladder.measuring.watchdog import Attempt, Watchdog, attempt, unless_hung
from stepladder.training.evaluate import EvaluationCancelled


def test_what_ends_in_time_gives_its_value() -> None:
    assert unless_hung(lambda: 3, foretold_s=0.0, at_least_s=10.0) == 3


def test_what_hangs_gives_nothing() -> None:
    assert unless_hung(lambda: time.sleep(60) or 3, foretold_s=0.0, at_least_s=0.05) is None


@pytest.mark.parametrize(("foretold_s", "granted_s"), [(0.0, 10.0), (0.5, 10.0), (2.0, 20.0)])
def test_ten_times_what_was_foretold_is_granted(foretold_s: float, granted_s: float) -> None:
    left_s = unless_hung(
        lambda: signal.getitimer(signal.ITIMER_REAL)[0], foretold_s=foretold_s, at_least_s=10.0
    )
    assert left_s is not None
    assert granted_s - 5 < left_s <= granted_s


@pytest.mark.parametrize(
    ("left_s", "granted_s"), [(math.inf, 2000.0), (50.0, 550.0), (0.0, 500.0), (-30.0, 500.0)]
)
def test_little_more_is_granted_than_what_is_left_of_a_budget(
    left_s: float, granted_s: float
) -> None:
    watchdog = Watchdog(1.0, time_left=lambda: left_s)
    watchdog.expect(100.0)
    assert watchdog.deadline_s == granted_s
    assert watchdog.is_by_budget == math.isfinite(left_s)
    watchdog.grant(7.0)
    assert (watchdog.deadline_s, watchdog.is_by_budget) == (7.0, False)


def test_an_error_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        unless_hung(lambda: 1 // 0, foretold_s=0.0, at_least_s=10.0)


def test_a_probe_within_a_trial_leaves_the_trials_timer_running() -> None:
    with Watchdog(100.0).watching():
        unless_hung(lambda: 3, foretold_s=0.0, at_least_s=1.0)
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
        unknown_s = unless_hung(
            lambda: signal.getitimer(signal.ITIMER_REAL)[0], foretold_s=math.inf, at_least_s=1.0
        )
        assert unknown_s is not None
        assert 50 < unknown_s <= 100, "no prediction: only the trial is watched"


def attempt_to_raise(error: BaseException) -> Attempt[None]:
    def fail() -> None:
        raise error

    return attempt(fail, foretold_s=1.0, at_least_s=1.0)


@pytest.mark.parametrize(
    ("error", "because"),
    [
        (ValueError("its own\nand more"), "raised ValueError: its own"),
        (AssertionError(), "raised AssertionError: "),
        (MemoryError(), "ran out of memory, or hung"),
        (RuntimeError("CUDA out of memory"), "ran out of memory, or hung"),
    ],
)
def test_a_probe_that_raises_says_why(error: Exception, because: str) -> None:
    assert attempt_to_raise(error) == Attempt(value=None, failed_because=because)


def test_a_probe_that_hangs_is_ended() -> None:
    found = attempt(lambda: time.sleep(60), foretold_s=0.0, at_least_s=0.05)
    assert found == Attempt(value=None, failed_because="ran out of memory, or hung")


@pytest.mark.parametrize(
    "error", [DataError("a damaged file"), EvaluationCancelled(), KeyboardInterrupt()]
)
def test_what_is_meant_for_a_person_or_by_one_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        attempt_to_raise(error)

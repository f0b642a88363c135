"""Probes that a profile can do without."""

from __future__ import annotations

import time

import pytest

from stepladder.errors import DataError
from stepladder.measuring.watchdog import Attempt, attempt
from stepladder.training.evaluate import EvaluationCancelled


def attempt_to_raise(error: BaseException) -> Attempt[None]:
    def fail() -> None:
        raise error

    return attempt(fail, foretold_s=1.0, at_least_s=1.0)


def test_what_is_found_is_given() -> None:
    assert attempt(lambda: 7, foretold_s=1.0, at_least_s=1.0).value == 7


@pytest.mark.parametrize(
    ("error", "because"),
    [
        (ValueError("its own\nand more"), "raised ValueError: its own"),
        (AssertionError(), "raised AssertionError: "),
        (MemoryError(), "took all memory, or hung"),
        (RuntimeError("CUDA out of memory"), "took all memory, or hung"),
    ],
)
def test_a_probe_that_raises_says_why(error: Exception, because: str) -> None:
    assert attempt_to_raise(error) == Attempt(value=None, failed_because=because)


def test_a_probe_that_hangs_is_ended() -> None:
    found = attempt(lambda: time.sleep(60), foretold_s=0.0, at_least_s=0.05)
    assert found == Attempt(value=None, failed_because="took all memory, or hung")


@pytest.mark.parametrize(
    "error", [DataError("a damaged file"), EvaluationCancelled(), KeyboardInterrupt()]
)
def test_what_is_meant_for_a_person_or_by_one_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        attempt_to_raise(error)

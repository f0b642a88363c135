"""What ends a trial early, and what passes through."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from stepladder.errors import DivergedError, InterruptedRun
from stepladder.ladder.limits.guard import (
    BudgetEnded,
    TrialFailed,
    Watchdog,
    failure_words,
    guarded,
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "ran out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "ran out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "ran out of memory"),
        (DivergedError("nan"), "diverged: the loss is not a finite number"),
        (ZeroDivisionError("by zero\nmore"), "raised ZeroDivisionError: by zero"),
        (KeyError(), "raised KeyError"),
    ],
)
def test_errors_are_reported_in_a_few_words(error: Exception, words: str) -> None:
    assert failure_words(error) == words
    with pytest.raises(TrialFailed, match=words), guarded(Watchdog()):
        raise error


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(), InterruptedRun("asked for", signal_number=15)]
)
def test_requests_to_end_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)), guarded(Watchdog()):
        raise error


def test_what_hangs_is_interrupted() -> None:
    with pytest.raises(TrialFailed, match="hung: not finished after"), guarded(Watchdog(0.05)):
        time.sleep(30)


def test_what_outlasts_its_budget_need_not_hang() -> None:
    watchdog = Watchdog(0.05, time_left=lambda: 0.01)
    watchdog.expect(0.01)
    with (
        pytest.raises(BudgetEnded, match="the budget ran out: not finished after"),
        guarded(watchdog),
    ):
        time.sleep(30)


def test_waiting_for_a_thread_that_hangs_is_interrupted_too() -> None:
    release = threading.Event()
    pool = ThreadPoolExecutor(1)
    try:
        with pytest.raises(TrialFailed, match="hung"), guarded(Watchdog(0.05)):
            pool.submit(release.wait, 30).result()
    finally:
        release.set()
        pool.shutdown()


def test_a_hang_is_not_swallowed_by_a_users_except() -> None:
    def try_for_ever() -> None:
        try:
            time.sleep(30)
        except Exception:
            time.sleep(30)

    with pytest.raises(TrialFailed, match="hung"), guarded(Watchdog(0.05)):
        try_for_ever()


def test_each_new_expectation_restarts_the_patience() -> None:
    watchdog = Watchdog(100)
    with guarded(watchdog):
        signal.setitimer(signal.ITIMER_REAL, 50)  # half of the patience is used
        watchdog.expect(0.0)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 60
        watchdog.expect(50.0)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    watchdog.expect(10.0)
    assert watchdog.deadline_s == 200


def test_an_external_timer_continues() -> None:
    before = signal.getsignal(signal.SIGALRM)
    old = signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        with guarded(Watchdog()):
            time.sleep(0.01)
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 90 < left_s < 100
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        signal.setitimer(signal.ITIMER_REAL, *old)


def test_other_threads_are_not_watched() -> None:
    done = []

    def work() -> None:
        with guarded(Watchdog(0.01)):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done

"""Activities are reported when nothing else is printed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from stepladder.machine import activity
from stepladder.machine.activity import (
    Heartbeat,
    Report,
    be_silent,
    doing,
    paused,
    printed,
    report,
)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_TICK_S", 0.01)


def until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_innermost_activities_are_reported_with_the_time_left() -> None:
    with (
        doing("climb", left_s=100),
        doing("trial 1 of about 3"),
        doing("evaluating", total=4) as one,
    ):
        assert report().what == "trial 1 of about 3: evaluating"
        assert report().left_s == pytest.approx(100, abs=1)  # of the outermost: nothing is counted
        one.done = 2
        assert report().left_s == pytest.approx(one.elapsed_s, abs=0.1)
        assert (report().done, report().total) == (2, 4)
    assert report().what == "working"


def test_an_estimate_that_has_passed_is_not_shown() -> None:
    with doing("measuring", left_s=0.0):
        assert report().left_s is None


def test_a_first_report_comes_soon_and_later_ones_after_silence() -> None:
    seen: list[Report] = []
    with doing("starting"), Heartbeat(seen.append, every_s=0.3, first_s=0.05):
        until(lambda: len(seen) == 1)
        printed()
        until(lambda: len(seen) == 2)
    assert seen[0].elapsed_s < 0.25
    assert seen[1].elapsed_s > 0.3
    count = len(seen)
    time.sleep(0.05)
    assert len(seen) == count  # the thread has ended


def test_output_defers_a_report() -> None:
    seen: list[Report] = []
    with Heartbeat(seen.append, every_s=0.5, first_s=0.5):
        for _ in range(20):
            printed()
            time.sleep(0.01)
    assert seen == []


def test_an_inner_heartbeat_replaces_the_outer_one_for_its_block() -> None:
    outer: list[Report] = []
    inner: list[Report] = []
    with Heartbeat(outer.append, every_s=0.02, first_s=0.02):
        until(lambda: bool(outer))
        with Heartbeat(inner.append, every_s=0.02):
            count = len(outer)
            until(lambda: len(inner) > 1)
            assert len(outer) <= count + 1
            assert sum(t.name == "stepladder-heartbeat" for t in threading.enumerate()) == 1
        count = len(outer)
        until(lambda: len(outer) > count)


def test_no_thread_is_left_while_processes_are_forked() -> None:
    before = threading.active_count()
    with Heartbeat(lambda _: None), Heartbeat(lambda _: None):
        assert threading.active_count() == before + 1
        with paused():
            assert threading.active_count() == before
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_a_heartbeat_that_is_entered_again_within_itself_is_paused_and_ends() -> None:
    before = threading.active_count()
    seen: list[Report] = []
    heart = Heartbeat(seen.append, every_s=0.02, first_s=0.02)
    with heart:
        with heart, paused():
            assert threading.active_count() == before
        count = len(seen)
        until(lambda: len(seen) > count)
    assert threading.active_count() == before


def test_a_failing_sink_does_not_end_the_work() -> None:
    def fail(_: Report) -> None:
        raise OSError

    with Heartbeat(fail, every_s=0.01, first_s=0.01):
        time.sleep(0.05)


def test_a_process_without_a_log_reports_nothing_also_within_a_display() -> None:
    seen: list[Report] = []
    be_silent(is_silent=True)
    try:
        with (
            Heartbeat(None, every_s=0.02, first_s=0.02),
            Heartbeat(seen.append, every_s=0.02, first_s=0.02),
        ):
            time.sleep(0.2)
            assert not seen
            be_silent(is_silent=False)
            until(lambda: len(seen) >= 1)
    finally:
        be_silent(is_silent=False)

from __future__ import annotations

import threading

import pytest

from stepladder.data.remote.parallel import run_all


def test_all_tasks_run_on_as_many_threads_as_asked_for() -> None:
    together = threading.Barrier(3)  # passes only if three run at once
    done: list[int] = []

    def task(number: int) -> None:
        together.wait(30)
        done.append(number)

    run_all([lambda number=number: task(number) for number in range(6)], num_threads=3)
    assert sorted(done) == list(range(6))


def test_this_thread_learns_how_many_are_done() -> None:
    told: list[int] = []
    threads: set[int] = set()

    def on_done(done: int) -> None:
        told.append(done)
        threads.add(threading.get_ident())

    run_all([lambda: None] * 50, num_threads=3, on_done=on_done)
    assert told == sorted(told)
    assert told[-1] == 50
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("waits", [True, False])
def test_a_failure_ends_it_and_waits_for_others_only_if_asked(waits: bool) -> None:
    is_under_way, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        is_under_way.set()
        may_end.wait(30)
        done.append("slow")
        ended.set()

    def fail() -> None:
        is_under_way.wait(30)
        if waits:
            threading.Timer(0.05, may_end.set).start()
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        run_all([slow, fail, lambda: done.append("never")], num_threads=2, waits=waits)
    assert done == (["slow"] if waits else [])
    may_end.set()
    assert ended.wait(30)

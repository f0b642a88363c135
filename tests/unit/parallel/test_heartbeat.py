"""A rank that hangs in its own work is distinguished from one that waits or makes progress."""

from __future__ import annotations

import itertools
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from stepladder.machine.activity import doing, moved, on_its_own, standing, waiting_for_others
from stepladder.parallel import heartbeat
from stepladder.parallel.heartbeat import Heart
from stepladder.parallel.world import World

MEET_S, STALL_S = 300.0, 120.0
COUNTS = itertools.count(1)  # of beats


class Clock:
    """A monotonic clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.now

    def time(self) -> float:
        """Return the same seconds."""
        return self.now


class Store(dict[str, str]):
    """A store in memory."""

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys are there."""
        return all(key in self for key in keys)

    def set(self, key: str, value: str) -> None:
        """Store a value."""
        self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value."""
        return super().get(key, default)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the heartbeat."""
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    return made


@pytest.fixture
def heart(tmp_path: Path, clock: Clock) -> Heart:
    """The heart of a rank whose thread is not started."""
    del clock
    world = World(rank=0, size=1)
    return Heart(
        world=world,
        address=("127.0.0.1", 1),
        meet_s=MEET_S,
        stall_s=STALL_S,
        folder=tmp_path,
        attempt=0,
    )


def found_after(heart: Heart, clock: Clock, seconds: float) -> str | None:
    """Return what is found if nothing happens for some seconds, with a beat before and after."""
    store = Store()
    for wait_s in (seconds, 0.0):
        heart.send(store, next(COUNTS))
        clock.now += wait_s
    found = heart.look(store)
    return None if found is None else found[1]


def test_own_work_without_progress_is_named_after_the_limit(heart: Heart, clock: Clock) -> None:
    heart.met()
    with on_its_own("writing a checkpoint"):
        assert found_after(heart, clock, STALL_S) is None
        found = found_after(heart, clock, 1.0)
    assert found == (
        f"has been writing a checkpoint for 121 s without progress ({socket.gethostname()}), "
        "which --run.stall-s 240 would allow"
    )


@pytest.mark.parametrize("how", ["move", "activity", "count"])
def test_progress_starts_the_time_again(heart: Heart, clock: Clock, how: str) -> None:
    heart.met()
    with doing("evaluating", total=9) as activity, on_its_own("reading held-out examples"):
        assert found_after(heart, clock, STALL_S) is None
        if how == "move":
            moved()
        elif how == "count":
            activity.done += 1
        else:
            with doing("something"):
                pass
        assert found_after(heart, clock, STALL_S) is None


@pytest.mark.parametrize(
    "block", [waiting_for_others(), nullcontext()], ids=["waits for others", "computes"]
)
def test_what_waits_for_others_or_computes_has_no_limit(
    heart: Heart, clock: Clock, block: AbstractContextManager[None]
) -> None:
    heart.met()
    with block:
        assert found_after(heart, clock, 10 * MEET_S) is None


def test_a_rank_that_waits_for_others_within_a_named_phase_has_no_limit(
    heart: Heart, clock: Clock
) -> None:
    heart.watch(lambda: (7, "data_wait"))
    with waiting_for_others():
        assert found_after(heart, clock, 10 * STALL_S) is None
    assert "has been waiting for data for" in (found_after(heart, clock, 2 * STALL_S) or "")


def test_work_of_another_thread_is_not_that_of_the_main_thread() -> None:
    def work() -> str | None:
        with on_its_own("copying a checkpoint"):
            return standing().what

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() is None


def test_each_step_has_its_own_time(heart: Heart, clock: Clock) -> None:
    steps = iter((1, 2, 3, 4, 4, 4))
    heart.watch(lambda: (next(steps), "data_wait"))
    assert found_after(heart, clock, 2 * STALL_S) is None
    assert found_after(heart, clock, 2 * STALL_S) is None
    found = found_after(heart, clock, 2 * STALL_S)
    assert found is not None
    assert "has been waiting for data for 240 s without progress" in found
    assert ", step 4)" in found


def test_in_the_handshake_also_work_without_a_name_is_limited(heart: Heart, clock: Clock) -> None:
    assert found_after(heart, clock, MEET_S) is None
    found = found_after(heart, clock, 1.0)
    assert found is not None
    assert found.startswith("has been starting for 301 s")
    assert found.endswith("which --run.meet-s 600 would allow")


def test_in_the_handshake_named_work_has_the_limit_of_the_handshake(
    heart: Heart, clock: Clock
) -> None:
    with on_its_own("opening the data"):
        assert found_after(heart, clock, MEET_S) is None
        assert "opening the data for 301 s" in (found_after(heart, clock, 1.0) or "")


def test_a_disk_that_hangs_does_not_keep_the_rank_that_reports_it(
    heart: Heart, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure is recorded in the run folder, which may be what hangs."""
    reached, released = threading.Event(), threading.Event()
    codes: list[int] = []

    def hang(*_: Any) -> None:
        reached.set()
        released.wait()

    monkeypatch.setattr(heartbeat, "_END_S", 0.1)
    monkeypatch.setattr(heartbeat, "record_failure", hang)
    monkeypatch.setattr(heartbeat, "dump_collectives", lambda *_, **__: None)
    monkeypatch.setattr(heartbeat.os, "_exit", codes.append)
    heart.end(1, "has been writing a checkpoint for 121 s without progress")
    assert codes == [heartbeat.LOST_CODE]
    assert reached.wait(10)
    assert "rank 1 has been writing a checkpoint" in capsys.readouterr().err
    released.set()


def test_nested_work_is_named_by_the_innermost() -> None:
    with on_its_own("opening the store"):
        with on_its_own("reading its manifest"):
            assert standing().what == "reading its manifest"
        assert standing().what == "opening the store"
        with waiting_for_others():
            assert (standing().what, standing().waits_for_others) == (None, True)
    assert (standing().what, standing().waits_for_others) == (None, False)

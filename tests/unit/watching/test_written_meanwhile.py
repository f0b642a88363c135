"""Interim results are kept for a script that is killed, at little cost for slow steps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.watching.script import session as session_module
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.session import Session

WRITE_S = 1 / 128  # the cost of writing, by the test's clock


class Clock:
    """A clock that is set by the test."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that simulates steps of some seconds and returns the steps written at."""
    clock = Clock()
    monkeypatch.setattr(session_module, "perf_counter", clock)

    def pass_steps(step_s: float, num_steps: int, begin_s: float = 0.0) -> list[int]:
        found: list[int] = []
        session = Session("train.py", (), OwnCode(tmp_path), tmp_path, lambda _: None)
        phases = SimpleNamespace(ended=0.0)
        watcher = SimpleNamespace(step=0, phases=phases)
        session._watcher = watcher  # type: ignore[assignment]

        def report_of(*_: Any, **__: Any) -> Any:
            clock.now_s += WRITE_S
            found.append(watcher.step)
            return {"steps": watcher.step}

        session._report_of = report_of
        clock.now_s += begin_s
        for watcher.step in range(1, num_steps + 1):
            clock.now_s += step_s
            phases.ended = clock.now_s
            session._write_sometimes()
        kept = json.loads((tmp_path / "watch.json").read_text()) if found else {}
        assert kept.get("steps", 0) == (found[-1] if found else 0)
        return found

    return pass_steps


def test_quick_steps_are_written_every_five_seconds(writing: Any) -> None:
    found = writing(1 / 128, 2600)
    assert found[0] == 641
    assert len(found) == 4


def test_slow_steps_wait_until_writing_costs_them_little(writing: Any) -> None:
    found = writing(0.5, 400)
    assert found[0] == 11  # the first one after five seconds, as a script may be killed early
    assert 110 <= found[1] - found[0] <= 130  # then a minute
    assert len(found) * WRITE_S / 400 < 200e-6


def test_what_a_script_takes_before_its_first_step_does_not_count(writing: Any) -> None:
    assert writing(0.5, 400, begin_s=60.0)[0] == 11


def test_a_script_that_ends_within_five_seconds_is_not_written_meanwhile(writing: Any) -> None:
    assert writing(1 / 128, 600) == []

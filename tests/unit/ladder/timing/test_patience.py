"""Waiting for quiet moments, and timings that are repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stepladder.ladder.timing import patience as patience_module
from stepladder.ladder.timing.patience import Patience, allowance_s
from stepladder.machine.activity import report

Others = Callable[..., None]


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Others:
    """Set how many cores other processes use, look by look; none afterwards."""
    monkeypatch.setattr(patience_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(patience_module, "num_cores", lambda: 2)

    def use(*cores: float, then: float = 0.0) -> None:
        found = iter(cores)
        monkeypatch.setattr(patience_module, "cores_missing_since", lambda _: next(found, then))

    return use


def test_a_disturbed_timing_is_repeated_in_the_next_quiet_moment(others: Others) -> None:
    others(0.7, 1.5, 1.5, 0.02, 0.01)  # a timing, three looks, a timing
    timings: Iterator[str] = iter(["disturbed", "quiet"])
    patience = Patience(left_s=60.0)
    assert patience.undisturbed(lambda: next(timings)) == "quiet"
    assert [missing for _, missing in patience.counted] == [0.01]
    assert not patience.was_disturbed
    assert patience.used_s == pytest.approx(60.0 - patience.left_s)
    assert patience.used_s >= 0.02


def test_without_time_every_timing_counts_and_nothing_waits(others: Others) -> None:
    others(then=1.5)
    patience = Patience(left_s=0.0)
    patience.wait()
    assert patience.undisturbed(lambda: "disturbed") == "disturbed"
    assert patience.was_disturbed
    assert patience.used_s == 0.0


def test_others_that_stay_are_waited_for_once(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(then=1.5)
    monkeypatch.setattr(patience_module, "LASTING_S", 0.05)
    patience = Patience(left_s=60.0)
    patience.wait()
    assert patience.left_s == 0.0
    assert 0.05 <= patience.used_s < 30
    used_s = patience.used_s
    patience.wait()
    assert patience.used_s == used_s


def test_a_wait_says_what_it_waits_for(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    others(1.5, 1.5)
    said = []
    sleep = patience_module.time.sleep

    def look(seconds: float) -> None:
        said.append(report().what)
        sleep(seconds)

    monkeypatch.setattr(patience_module.time, "sleep", look)
    Patience(left_s=60.0).wait()
    assert "waiting until other processes leave the cores alone" in said[-1]


def test_a_little_work_of_others_does_not_disturb_many_cores(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(then=0.3)
    monkeypatch.setattr(patience_module, "num_cores", lambda: 16)
    patience = Patience(left_s=60.0)
    assert patience.undisturbed(lambda: 1) == 1
    assert not patience.was_disturbed


@pytest.mark.parametrize(
    ("original_s", "budget_s", "wanted"),
    [(1000.0, None, 300.0), (20.0, None, 40.0), (1000.0, 600.0, 150.0)],
)
def test_a_climb_waits_neither_long_for_a_short_job_nor_most_of_its_budget(
    monkeypatch: pytest.MonkeyPatch, original_s: float, budget_s: float | None, wanted: float
) -> None:
    monkeypatch.setattr(patience_module, "MAX_WAIT_S", 300.0)
    assert allowance_s(original_s, budget_s) == wanted

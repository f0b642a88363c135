"""The headline is measured in pairs, and the smallest of what disagrees."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from stepladder.ladder.summary.end_to_end import (
    OF_DEFAULT,
    chain_of,
    over_default,
    quoted_ratio,
)
from stepladder.records.ladder import Decision, Interval, Trial, Verdict
from stepladder.rungs import RUNGS


def interval(estimate: float, factor: float = 1.1) -> Interval:
    return Interval(estimate=estimate, low=estimate / factor, high=estimate * factor)


def trial(speed: Interval | None, decision: Decision = Decision.KEPT) -> Trial:
    verdict = Verdict(decision=decision, reason="", speed=speed)
    return Trial(rung="one", level=1, change={}, prediction=None, verdict=verdict)


def test_gains_of_kept_rungs_multiply_and_their_errors_add_as_variances() -> None:
    trials = [
        trial(interval(10.0, 1.1)),
        trial(interval(2.0, 1.2)),
        trial(interval(7.0), Decision.DROPPED),
        trial(None),
    ]
    found = chain_of(trials)
    assert found is not None
    assert found.estimate == pytest.approx(20.0)
    width = math.hypot(math.log(1.1), math.log(1.2))
    assert found.high == pytest.approx(20.0 * math.exp(width))
    assert found.low == pytest.approx(20.0 / math.exp(width))


def test_without_a_measured_gain_there_is_no_chain() -> None:
    assert chain_of([trial(None), trial(interval(3.0), Decision.NOT_HERE)]) is None


def test_against_the_default_only_the_other_rungs_count() -> None:
    trials = [
        replace(trial(interval(gain)), rung=name)
        for name, gain in (*((name, 2.0) for name in sorted(OF_DEFAULT)), ("larger_batch", 3.0))
    ]
    assert over_default(interval(96.0), trials) == pytest.approx(6.0)
    assert over_default(interval(96.0), trials[-1:]) is None  # none of them was kept


def test_the_default_is_made_of_rungs_that_exist() -> None:
    assert {rung.name for rung in RUNGS} > OF_DEFAULT


@pytest.mark.parametrize(
    ("paired", "chain", "runs_s", "expected", "is_other"),
    [
        (100.0, None, (10.0, 10.0), 100.0, False),
        (100.0, 105.0, (10.0, 10.0), 100.0, False),  # within both bounds
        (100.0, 50.0, (10.0, 10.0), 50.0, True),
        (100.0, 300.0, (10.0, 10.0), 100.0, True),
        (100.0, None, (10.0, 12.0), 100.0, False),  # 20 % apart
        (100.0, None, (10.0, 20.0), 50.0, False),  # it was faster before the climb
        (100.0, None, (20.0, 10.0), 100.0, False),  # and now it is slower: the pairs count
        (100.0, 40.0, (10.0, 20.0), 40.0, True),
    ],
)
def test_where_measurements_disagree_the_smallest_ratio_is_quoted(
    paired: float,
    chain: float | None,
    runs_s: tuple[float, float],
    expected: float,
    is_other: bool,
) -> None:
    found = quoted_ratio(interval(paired), interval(chain) if chain else None, runs_s=runs_s)
    assert found.bounds.estimate == pytest.approx(expected)
    assert found.bounds.low == pytest.approx(expected / 1.1)
    assert found.is_other_chain is is_other

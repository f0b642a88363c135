"""A watched script is compared with an earlier run of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.stats.speed import unpaired_ratio
from stepladder.watching.regression import regression

FAULT = Finding(check="stale_gradients", outcome=Outcome.FAILED, fault="stale_gradients")


def report(factor: float, seed: int, **more: object) -> WatchReport:
    draw = random.Random(seed)
    blocks = tuple(0.1 * factor * (1 + draw.uniform(-0.05, 0.05)) for _ in range(30))
    return replace(WatchReport(script="train.py", block_s=blocks), **more)  # type: ignore[arg-type]


def test_the_same_script_is_not_slower() -> None:
    found = regression(report(1, 0), report(1, 1), max_slower=0)
    assert not found.is_worse


def test_slower_steps_beyond_what_is_allowed_are_worse() -> None:
    found = regression(report(1, 0), report(1.3, 1), max_slower=0.1)
    assert found.slower is not None
    assert found.slower.estimate == pytest.approx(1.3, rel=0.05)
    assert found.is_slower
    assert not regression(report(1, 0), report(1.3, 1), max_slower=0.4).is_worse


def test_a_new_fault_is_worse_and_an_old_one_is_not() -> None:
    with_fault = report(1, 1, findings=(FAULT,))
    assert regression(report(1, 0), with_fault, max_slower=0.1).new_faults == ("stale_gradients",)
    assert not regression(with_fault, with_fault, max_slower=0.1).is_worse


def test_other_conditions_are_not_compared() -> None:
    found = regression(
        report(1, 0, facts={"threads": 2}), report(9, 1, facts={"threads": 1}), max_slower=0.1
    )
    assert found.why_not == "threads was 2 in the earlier run, and is 1 now"
    assert not found.is_worse
    few = replace(report(9, 1), block_s=(0.1, 0.2))
    assert regression(report(1, 0), few, max_slower=0.1).slower is None


def test_the_interval_of_separate_runs_covers_the_true_ratio() -> None:
    draw = random.Random(0)
    num_covered = 0
    for _ in range(300):
        before = [draw.lognormvariate(0, 0.1) for _ in range(12)]
        after = [draw.lognormvariate(0.2, 0.3) for _ in range(20)]
        found = unpaired_ratio(before, after, confidence=0.975)
        num_covered += found.low <= 2.718281828**0.2 <= found.high
    assert 0.91 <= num_covered / 300 <= 0.99

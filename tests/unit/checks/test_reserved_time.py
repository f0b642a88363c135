"""While a check runs, the time that later checks for errors need is reserved for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.checks.contract import Answer, Check, Tier, passed
from stepladder.checks.examples import Example
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.run import run_checks
from stepladder.records.findings import CheckReport, Severity


class Clock:
    """A clock that only the checks advance."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    return clock


@pytest.fixture
def job(tmp_path: Path) -> CheckedJob:
    example = Example()
    return open_job(example.config(tmp_path), example.task, task_name="example")


def check_of(
    name: str,
    severity: Severity,
    least_s: float,
    use_s: Callable[[CheckedJob], float] = lambda _: 0.0,
    *,
    clock: Clock,
    tier: Tier = Tier.FULL,
) -> Check:
    """Return a check that takes the time that `use_s` returns."""

    def run(job: CheckedJob) -> Answer:
        seconds = use_s(job)
        clock.now_s += seconds
        return passed("nothing", used_s=seconds)

    return Check(
        name=name,
        reason="To test.",
        source="this test",
        severity=severity,
        tier=tier,
        faults=(),
        run=run,
        broken=Example,
        least_s=least_s,
    )


def used_s(report: CheckReport) -> dict[str, float]:
    used = {finding.check: finding.numbers["used_s"] for finding in report.findings}
    return {name: value for name, value in used.items() if isinstance(value, float)}


def run_within(job: CheckedJob, checks: list[Check], limit_s: float) -> CheckReport:
    return run_checks(job, checks, tier=Tier.FULL, key="k", limit_s=limit_s)


def _all_and_more(job: CheckedJob) -> float:
    """Return the time left, and a little more, as a loop needs that stops after the deadline."""
    return job.left_s() + 0.1


def test_a_check_that_uses_all_time_left_leaves_what_later_errors_need(
    job: CheckedJob, clock: Clock
) -> None:
    checks = [
        check_of("greedy", Severity.ERROR, 1, _all_and_more, clock=clock),
        check_of("later", Severity.ERROR, 6, _all_and_more, clock=clock),
        check_of("last", Severity.ERROR, 4, _all_and_more, clock=clock),
        check_of("warning", Severity.WARNING, 3, clock=clock),
    ]
    report = run_within(job, checks, 20)
    least_s = {"greedy": 1, "later": 6, "last": 4}
    used = used_s(report)
    assert used.keys() == least_s.keys()
    assert all(used[name] >= least_s[name] for name in least_s)
    assert report.left_out == ("warning",)


def test_a_warning_starts_only_in_time_that_no_error_needs(job: CheckedJob, clock: Clock) -> None:
    checks = [
        check_of("warning", Severity.WARNING, 3, lambda _: 3.0, clock=clock),
        check_of("error", Severity.ERROR, 8, clock=clock),
    ]
    assert run_within(job, checks, 10).left_out == ("warning",)
    assert run_within(job, checks, 12).left_out == ()


def test_of_two_errors_without_time_for_both_the_first_runs(job: CheckedJob, clock: Clock) -> None:
    checks = [
        check_of("first", Severity.ERROR, 5, lambda _: 5.0, clock=clock),
        check_of("second", Severity.ERROR, 8, clock=clock),
    ]
    assert run_within(job, checks, 9).left_out == ("second",)


def test_on_a_slow_machine_only_the_last_ones_are_left_out(job: CheckedJob, clock: Clock) -> None:
    names = "abcdef"
    checks = [check_of(name, Severity.ERROR, 2, lambda _: 5.0, clock=clock) for name in names]
    report = run_within(job, checks, 16)
    assert report.left_out == ("d", "e", "f")


def test_fast_checks_run_within_a_limit_below_what_is_reserved(
    job: CheckedJob, clock: Clock
) -> None:
    checks = [
        check_of("fast", Severity.WARNING, 0, tier=Tier.FAST, clock=clock),
        check_of("full", Severity.ERROR, 30, clock=clock),
    ]
    assert run_within(job, checks, 2).left_out == ("full",)


def test_without_a_limit_every_check_runs(job: CheckedJob, clock: Clock) -> None:
    checks = [check_of("full", Severity.WARNING, 1e6, clock=clock)]
    assert run_checks(job, checks, tier=Tier.FULL, key="k").left_out == ()

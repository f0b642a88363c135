"""Stored findings: those with equal keys are merged, and never reduced."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.api.checks import check_job
from stepladder.checks import order
from stepladder.checks.contract import Answer, Check, Tier, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.report_file import add_checks, find_kept, missing, read_checks, write_checks
from stepladder.config.options import JobConfig
from stepladder.ladder import keys
from stepladder.records.findings import CheckReport, Finding, Outcome, Severity


class Looks:
    """Three checks that record when they run; the last is estimated to take a minute."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.checks = (
            self._check("quick", Tier.FAST, 0.0),
            self._check("trains", Tier.FULL, 0.0),
            self._check("long", Tier.FULL, 60.0),
        )

    def _check(self, name: str, tier: Tier, least_s: float) -> Check:
        def look(_: CheckedJob) -> Answer:
            self.names.append(name)
            return passed(f"look {len(self.names)}")

        return Check(
            name=name,
            reason="To count.",
            source="this test",
            severity=Severity.ERROR,
            tier=tier,
            faults=(),
            run=look,
            broken=Example,
            least_s=least_s,
        )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    monkeypatch.setattr(order, "CHECKS", looks.checks)
    monkeypatch.setattr(keys, "code_key", lambda _: "this code")
    return looks


def job_in(folder: Path) -> JobConfig:
    return Example().config(folder)


def names_of(report: CheckReport) -> list[str]:
    return [finding.check for finding in report.findings]


def test_a_second_call_runs_what_was_left_out_and_keeps_the_rest(
    looks: Looks, tmp_path: Path
) -> None:
    first = check_job(job_in(tmp_path), task=SoundPictures())
    assert first.left_out == ("long",)
    told: list[Finding] = []
    second = check_job(job_in(tmp_path), task=SoundPictures(), limit_s=100, on_finding=told.append)
    assert looks.names == ["quick", "trains", "long"]
    assert second.left_out == ()
    assert second.findings[:2] == first.findings
    assert [finding.check for finding in told] == names_of(second) == looks.names
    assert second.took_s > first.took_s
    assert read_checks(tmp_path / "run") == second
    assert (tmp_path / "run" / "checks.html").is_file()


def test_a_smaller_budget_keeps_what_was_found(looks: Looks, tmp_path: Path) -> None:
    first = check_job(job_in(tmp_path), task=SoundPictures())
    again = check_job(job_in(tmp_path), task=SoundPictures(), limit_s=1e-9)
    assert again.findings == first.findings
    assert again.left_out == ("long",)
    fast = check_job(job_in(tmp_path), task=SoundPictures(), is_fast=True)
    assert fast == read_checks(tmp_path / "run") == again
    assert looks.names == ["quick", "trains"]


def test_fast_findings_are_added_to(looks: Looks, tmp_path: Path) -> None:
    fast = check_job(job_in(tmp_path), task=SoundPictures(), is_fast=True)
    assert names_of(fast) == ["quick"]
    full = check_job(job_in(tmp_path), task=SoundPictures(), limit_s=100)
    assert names_of(full) == looks.names == ["quick", "trains", "long"]
    assert full.tier == "full"


def test_fresh_runs_all_checks_again(looks: Looks, tmp_path: Path) -> None:
    check_job(job_in(tmp_path), task=SoundPictures())
    check_job(job_in(tmp_path), task=SoundPictures(), fresh=True, limit_s=100)
    assert looks.names == ["quick", "trains", "quick", "trains", "long"]


def report_of(*names: str, tier: str = "full", key: str = "k") -> CheckReport:
    findings = tuple(Finding(check=name, outcome=Outcome.PASSED) for name in names)
    left_out = tuple(name for name in ("quick", "trains", "long") if name not in names)
    return CheckReport(
        tier=tier,
        key=key,
        findings=findings,
        took_s=1.0,
        left_out=left_out if tier == "full" else (),
    )


@pytest.mark.usefixtures("looks")
def test_what_training_finds_does_not_replace_more(tmp_path: Path) -> None:
    write_checks(tmp_path, report_of("trains", "long"))
    whole = add_checks(tmp_path, report_of("quick", tier="fast"))
    assert names_of(whole) == ["quick", "trains", "long"]
    assert (whole.tier, whole.left_out) == ("full", ())
    assert read_checks(tmp_path) == whole
    assert add_checks(tmp_path, whole) == whole, "a repetition takes no time"
    other = report_of("quick", tier="fast", key="another")
    assert add_checks(tmp_path, other) == other


@pytest.mark.usefixtures("looks")
def test_training_asks_only_for_the_fast_ones(tmp_path: Path) -> None:
    write_checks(tmp_path, report_of("quick"))
    assert find_kept(tmp_path, key="k", tier=Tier.FULL) is None
    assert find_kept(tmp_path, key="k", tier=Tier.FAST) == report_of("quick")
    write_checks(tmp_path, report_of("quick", tier="another"))
    assert find_kept(tmp_path, key="k", tier=Tier.FAST) is None


@pytest.mark.usefixtures("looks")
def test_what_could_not_run_is_missing() -> None:
    report = report_of("quick", "trains", "long")
    stuck = Finding(check="trains", outcome=Outcome.COULD_NOT_RUN, evidence="no memory")
    report = CheckReport(tier="full", key="k", findings=(*report.findings[:1], stuck), took_s=1.0)
    assert [check.name for check in missing(report, Tier.FULL)] == ["trains", "long"]

"""Laws for all checks: each fires on its broken example and is silent on the sound one."""

from __future__ import annotations

import inspect
import random
import re
from dataclasses import replace
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
import torch

from stepladder.checks.contract import Answer, Check, Tier
from stepladder.checks.examples import Example
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.order import CHECKS
from stepladder.checks.run import run_check, run_checks
from stepladder.records.faults import FAULTS, Eyes
from stepladder.records.findings import Outcome, Severity

README = Path(__file__).parents[2] / "README.md"
PAGE = README.parent / "docs" / "adding-a-check.md"
EACH = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


def job_of(example: Example, folder: Path) -> CheckedJob:
    return open_job(example.config(folder), example.task, task_name="example")


@pytest.fixture(name="sound_folder", scope="module")
def _sound_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


@pytest.fixture(name="sound", scope="module")
def _sound(sound_folder: Path) -> CheckedJob:
    return job_of(Example(), sound_folder)


@EACH
def test_it_fires_on_its_broken_example_by_name(check: Check, tmp_path: Path) -> None:
    finding = run_check(check, job_of(check.broken(), tmp_path))
    assert finding.is_alarm, finding
    assert finding.fault in check.faults
    assert finding.evidence
    assert finding.fix
    wanted = Outcome.FAILED if check.severity is Severity.ERROR else Outcome.WARNED
    assert finding.outcome is wanted


@EACH
def test_it_is_quiet_on_the_sound_example_and_leaves_no_trace(
    check: Check, sound: CheckedJob, sound_folder: Path
) -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    finding = run_check(check, sound)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]
    assert not list(sound_folder.rglob("*")), "a check leaves no files"
    assert finding.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE), finding
    assert finding.evidence


@EACH
def test_it_has_the_name_of_its_file_and_says_why(check: Check) -> None:
    module = inspect.getmodule(check.run)
    assert module is not None
    assert module.__name__.split(".")[-1] == check.name
    assert module.CHECK is check
    assert len(check.reason) > 20
    assert len(check.source) > 3
    assert check.faults


@EACH
def test_it_finds_faults_of_checks(check: Check) -> None:
    looked_for = {fault.name for fault in FAULTS if Eyes.CHECK in fault.eyes}
    assert set(check.faults) <= looked_for


def test_each_fault_has_a_check() -> None:
    looked_for = {fault.name for fault in FAULTS if Eyes.CHECK in fault.eyes}
    assert looked_for - {name for check in CHECKS for name in check.faults} == set()


@pytest.mark.parametrize("tier", Tier)
def test_errors_come_before_warnings(tier: Tier) -> None:
    is_error = [check.severity is Severity.ERROR for check in CHECKS if check.tier is tier]
    assert is_error == sorted(is_error, reverse=True)


def test_fast_checks_come_first() -> None:
    is_fast = [check.tier is Tier.FAST for check in CHECKS]
    assert is_fast == sorted(is_fast, reverse=True)


def test_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_the_worked_example_of_the_page_is_a_check(sound: CheckedJob, tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    file = tmp_path / "target_scale.py"
    file.write_text(text.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    example: Check = run_path(str(file))["CHECK"]
    assert run_check(example, sound).outcome is Outcome.NOT_APPLICABLE
    finding = run_check(example, job_of(example.broken(), tmp_path))
    assert finding.outcome is Outcome.WARNED
    assert f'"{finding.fault}"' in text.partition("## 2.")[0]


def test_readme_says_how_many_there_are() -> None:
    (said,) = re.findall(r"^(\d+) checks of ", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert int(said) == len(CHECKS), "correct the number of checks in README.md"


def test_a_check_that_raises_could_not_run(sound: CheckedJob) -> None:
    def fail(_: CheckedJob) -> Answer:
        raise RuntimeError("no such thing")

    finding = run_check(replace(CHECKS[0], run=fail), sound)
    assert finding.outcome is Outcome.COULD_NOT_RUN
    assert "RuntimeError: no such thing" in finding.evidence


def test_where_no_time_is_left_a_check_is_listed_not_passed(sound: CheckedJob) -> None:
    report = run_checks(sound, CHECKS, tier=Tier.FULL, key="k", limit_s=0.0)
    assert report.findings == ()
    assert report.left_out == tuple(check.name for check in CHECKS)

"""`stepladder check`, and how `train` and `climb` use it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stepladder.checks import order
from stepladder.checks import run as checks_run
from stepladder.checks.contract import Answer
from stepladder.checks.report_file import CHECKS_FILE, read_checks, write_checks
from stepladder.checks.wording import earlier_line
from stepladder.cli.main import main
from stepladder.records.findings import CheckReport, Finding, Outcome

_TASK = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

class Mine(Task):
    def build_model(self, recipe):
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def data(self, split):
        seed = ["train", "val", "test"].index(split.value)
        x = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(seed))
        y = (x[:, 0] > 0).long() LABELS
        return TensorDataset(x, y)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""
SOUND = _TASK.replace("LABELS", "").replace("SIZE", "200")
BROKEN = _TASK.replace("LABELS", "+ 1").replace("SIZE", "200")


def raising(line: str, *, method: str = "loss") -> str:
    """Return a Task in which a method starts with a given line."""
    return re.sub(rf"(    def {method}\(.*\n)", rf"\g<1>        {line}\n", SOUND)


def line_of(text: str, part: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def task(folder: Path, text: str) -> list[str]:
    (folder / "mine.py").write_text(text)
    return [f"{folder / 'mine.py'}:Mine", "--train", "all", "--run.dir", str(folder / "run")]


def test_a_sound_job_ends_with_0_and_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *task(tmp_path, SOUND), "--fast"]) == 0
    printed = capsys.readouterr().out
    assert "passed          chance_level" in printed
    assert (tmp_path / "run" / "checks.html").read_text().count("<h1>") == 1
    report = read_checks(tmp_path / "run")
    assert report is not None
    assert report.tier == "fast"
    assert {finding.outcome for finding in report.findings} <= {
        Outcome.PASSED,
        Outcome.NOT_APPLICABLE,
        Outcome.WARNED,
    }


def test_an_unsound_job_ends_with_6_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *task(tmp_path, BROKEN), "--fast", "--json"]) == 6
    found = json.loads(capsys.readouterr().out)["findings"]
    faults = {item["fault"] for item in found if item["outcome"] == "failed"}
    assert "label_range" in faults
    assert all(item["fix"] for item in found if item["outcome"] == "failed")


def test_the_same_job_is_not_checked_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", *task(tmp_path, SOUND), "--fast", "--json"]
    main(words)
    first = json.loads(capsys.readouterr().out)
    main(words)
    again = json.loads(capsys.readouterr().out)
    assert again["took_s"] == first["took_s"]
    main([*words, "--fresh"])
    assert json.loads(capsys.readouterr().out)["took_s"] != first["took_s"]
    main([*words, "--batch.lr", "0.002"])
    assert json.loads(capsys.readouterr().out)["key"] != first["key"]


def test_a_file_without_the_name_of_a_task_is_asked_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task(tmp_path, SOUND)
    assert main(["check", str(tmp_path / "mine.py")]) == 2
    assert "does not say which Task of this Python file to use" in capsys.readouterr().err


def test_training_stops_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--task", *task(tmp_path, BROKEN.replace("200", "20000"))]
    words += ["--run.checks", "stop", "--schedule.max-epochs", "100", "--batch.lr", "0.01"]
    assert main(words) == 6
    assert "the check label_range failed" in capsys.readouterr().err.replace(
        "labels", "label_range"
    )
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_short_training_is_not_checked(tmp_path: Path) -> None:
    words = ["train", "--task", *task(tmp_path, SOUND), "--schedule.max-epochs", "1", "--quiet"]
    assert main(words) == 0
    assert not (tmp_path / "run" / CHECKS_FILE).exists()


def test_findings_before_training_are_in_the_report(tmp_path: Path) -> None:
    words = ["train", "--task", *task(tmp_path, SOUND), "--schedule.max-epochs", "1", "--quiet"]
    main(["check", *task(tmp_path, SOUND), "--fast"])
    assert main(words) == 0
    assert "Checks of the job" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("run_dir", "exit_code", "said"),
    [
        ("a_file", 2, "--run.dir must be a folder for the run, but this is a file"),
        ("a_file/below/run", 4, "the run folder cannot be created"),
        ("/proc/x", 4, "the run folder cannot be created"),
        ("/proc", 4, "cannot write files in /proc"),
    ],
)
def test_an_invalid_folder_is_reported_before_any_check(
    tmp_path: Path,
    run_dir: str,
    exit_code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").write_text("mine")
    words = task(tmp_path, SOUND)
    assert main(["check", *words[:-1], run_dir, "--fast"]) == exit_code
    shown = capsys.readouterr()
    assert said in shown.err
    assert "hoose another --run.dir" in shown.err
    assert not shown.out
    assert (tmp_path / "a_file").read_text() == "mine"


# --- a Task that raises, prints, or exits


def test_a_task_that_raises_ends_with_6_and_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = raising("raise KeyError('column')")
    assert main(["check", *task(tmp_path, text), "--fast"]) == 6
    printed = capsys.readouterr().out
    place = f"{tmp_path / 'mine.py'}:{line_of(text, 'KeyError')}"
    assert f"{place}: KeyError: 'column'" in printed
    assert "→ Fix this line in loss: raise KeyError('column')" in printed
    assert printed.count("KeyError: 'column'") == 1, "one row for all"
    report = read_checks(tmp_path / "run")
    assert report is not None
    raised = [finding for finding in report.findings if finding.numbers.get("raised")]
    assert {finding.outcome for finding in raised} == {Outcome.COULD_NOT_RUN}
    assert {finding.where for finding in raised} == {place}
    assert main(["check", *task(tmp_path, SOUND), "--fast"]) == 0


def test_what_could_not_run_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "there"
    words = task(tmp_path, raising(f"open({str(flag)!r}).close()"))
    assert main(["check", *words, "--fast"]) == 6
    flag.touch()
    assert main(["check", *words, "--fast"]) == 0


def test_checks_without_time_left_do_not_count_and_the_command_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = task(tmp_path, SOUND)
    assert main(["check", *words, "--fast", "--fresh", "--budget", "0.000001s"]) == 8
    printed = capsys.readouterr().out
    assert re.search(
        r"^incomplete \((\d+) of \1 did not run\): no check ran", printed, re.MULTILINE
    )
    assert f"→ stepladder check {' '.join(words)} --fast --budget 1m runs the remaining" in printed


def test_a_failed_check_counts_more_than_those_without_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = replace(order.CHECKS[1], least_s=60.0)
    monkeypatch.setattr(order, "CHECKS", (order.CHECKS[0], late))
    words = ["--fast", "--budget", "30s", "--json"]
    assert main(["check", *task(tmp_path, BROKEN), *words]) == 6
    assert main(["check", *task(tmp_path, SOUND), *words]) == 8
    assert main(["check", *task(tmp_path, SOUND), "--fast", "--budget", "3m", "--json"]) == 0


def test_a_check_that_could_not_run_is_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> Answer:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(order, "CHECKS", (replace(order.CHECKS[0], run=fail),))
    assert main(["check", *task(tmp_path, SOUND), "--fast"]) == 8
    assert "incomplete (1 of 1 did not run): 1 could not run, in" in capsys.readouterr().out


def test_a_repetition_prints_when_its_results_were_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", *task(tmp_path, SOUND), "--fast"]
    main(words)
    assert "unchanged since" not in capsys.readouterr().out
    report = read_checks(tmp_path / "run")
    assert report is not None
    then = datetime(2026, 1, 31, 9, 5, tzinfo=UTC)
    old = [replace(one, checked_at=then.isoformat()) for one in report.findings]
    write_checks(tmp_path / "run", replace(report, findings=tuple(old)))
    main(words)
    when = then.astimezone().strftime("%Y-%m-%d %H:%M")
    line = f"all results are from {when}: job, code and machine are unchanged since; --fresh"
    assert line in capsys.readouterr().out
    main([*words, "--fresh"])
    assert "unchanged since" not in capsys.readouterr().out


def test_results_of_two_calls_are_told_apart() -> None:
    then = datetime(2026, 1, 31, 9, 5, tzinfo=UTC)
    times = [then, then + timedelta(minutes=3), then + timedelta(minutes=9), None]
    report = CheckReport(
        tier="full",
        key="k",
        took_s=1.0,
        findings=tuple(
            Finding(check="x", outcome=Outcome.PASSED, checked_at=time and time.isoformat())
            for time in times
        ),
    )
    line = earlier_line(report, before=then + timedelta(minutes=5)) or ""
    first, last = (time.astimezone().strftime("%Y-%m-%d %H:%M") for time in times[:2] if time)
    assert line.startswith(f"2 of 4 results are from {first} to {last}: ")
    assert earlier_line(report, before=then) is None


def test_stdout_has_only_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = "import os, sys; print('hi'); print('real', file=sys.__stdout__); os.system('echo sub')"
    words = task(tmp_path, raising(line, method="build_model"))
    assert main(["check", *words, "--fast", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["tier"] == "fast"
    assert "hi" in captured.err
    assert "sub" in captured.err
    print("after")
    assert "after" in capfd.readouterr().out


@pytest.mark.parametrize("method", ["build_model", "data", "loss"])
def test_a_task_that_ends_the_program_is_an_error_of_its_line(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = raising("import sys; sys.exit(3)", method=method)
    assert main(["check", *task(tmp_path, text), "--fast"]) in (2, 6)
    captured = capsys.readouterr()
    told = captured.out + captured.err
    place = f"{tmp_path / 'mine.py'}:{line_of(text, 'sys.exit')}"
    assert f"{place}: Mine calls sys.exit(3)" in told
    assert "a Task must not end the program" in told


def test_the_budget_for_the_rest_grows_with_how_slow_the_machine_was() -> None:
    from stepladder.checks.order import CHECKS

    left = ("learning_rate", "validation_pass", "duplicates", "label_alignment", "baselines")
    left += ("distribution", "beats_baseline", "checkpoint_round_trip")
    ran = Finding(check="overfit_one_batch", outcome=Outcome.PASSED, took_s=2.0)
    slow = Finding(check="overfit_one_batch", outcome=Outcome.PASSED, took_s=10.0)

    def budget(finding: Finding, left_out: tuple[str, ...]) -> str | None:
        report = CheckReport(
            tier="full", key="k", findings=(finding,), took_s=9.0, left_out=left_out
        )
        return checks_run.budget_for_rest(report, CHECKS)

    assert budget(ran, ()) is None
    assert budget(ran, left) == "1m"
    assert budget(slow, left) == "4m"

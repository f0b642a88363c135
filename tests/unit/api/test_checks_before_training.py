"""`train` says in one line which of its checks did not run, and how to run them."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from stepladder.checks import preflight
from stepladder.checks.report_file import CHECKS_FILE
from stepladder.checks.wording import not_run_line
from stepladder.cli.main import main
from stepladder.records.findings import CheckReport, Finding, Outcome

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from stepladder import Task

class Line(Task):
    def build_model(self, recipe):
        return nn.Linear(1, 1)
    def data(self, split):
        x = torch.linspace(0, 1, 64)[:, None]
        return TensorDataset(x, 3 * x + 1)
    def loss(self, model, batch):
        return (model(batch.inputs) - batch.targets).square().squeeze(1)
"""
TRAIN = ["train", "my job.py:Line", "--train", "all", "--epochs", "1", "--run.dir", "my run"]


def finding(check: str, outcome: Outcome) -> Finding:
    return Finding(check=check, outcome=outcome, evidence="")


def report(*findings: Finding, left_out: tuple[str, ...] = ()) -> CheckReport:
    return CheckReport(
        tier="fast", key="key", findings=findings, took_s=1.0, limit_s=1.0, left_out=left_out
    )


def test_all_that_did_not_run_is_one_line() -> None:
    found = report(
        finding("labels", Outcome.PASSED),
        finding("loss", Outcome.COULD_NOT_RUN),
        finding("gradients", Outcome.NOT_APPLICABLE),
        left_out=("splits", "inputs"),
    )
    assert not_run_line(found, command="stepladder check job.yaml") == (
        "checks: 3 of 5 did not run (no time was left for splits, inputs; these could not run: "
        "loss); run them with: stepladder check job.yaml"
    )


def test_nothing_is_said_if_all_of_them_ran() -> None:
    found = report(finding("labels", Outcome.FAILED), finding("loss", Outcome.NOT_APPLICABLE))
    assert not_run_line(found, command="stepladder check job.yaml") is None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my job.py").write_text(TASK)
    return tmp_path


def test_a_training_without_checks_says_so_and_the_command_runs_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "predicted_s", lambda job: 0.1)
    assert main(TRAIN) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("checks: "))
    said, _, command = line.partition("; run them with: ")
    assert said == "checks: none ran, as the training is too short for them"
    assert not (folder / "my run" / CHECKS_FILE).exists()
    program, *words = shlex.split(command)
    assert program == "stepladder"
    assert main([*words, "--fast"]) in (0, 6)
    assert (folder / "my run" / CHECKS_FILE).exists()


def test_a_training_with_all_checks_says_nothing_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "predicted_s", lambda job: 1e6)
    monkeypatch.setattr(preflight, "CHECKS", preflight.CHECKS[:1])
    assert main(TRAIN) == 0
    assert "checks: " not in capsys.readouterr().out
    assert (folder / "my run" / CHECKS_FILE).exists()

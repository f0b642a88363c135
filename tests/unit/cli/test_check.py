"""`stepladder check`, and what `train` and `climb` make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepladder.checks.kept import CHECKS_FILE, read_checks
from stepladder.cli.main import main
from stepladder.records.findings import Outcome

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


def test_the_same_job_is_not_looked_at_twice(
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
    assert "which Task of this file?" in capsys.readouterr().err


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


def test_a_short_training_is_not_looked_at(tmp_path: Path) -> None:
    words = ["train", "--task", *task(tmp_path, SOUND), "--schedule.max-epochs", "1", "--quiet"]
    assert main(words) == 0
    assert not (tmp_path / "run" / CHECKS_FILE).exists()


def test_what_is_found_before_training_stands_in_the_report(tmp_path: Path) -> None:
    words = ["train", "--task", *task(tmp_path, SOUND), "--schedule.max-epochs", "1", "--quiet"]
    main(["check", *task(tmp_path, SOUND), "--fast"])
    assert main(words) == 0
    assert "Is the job sound?" in (tmp_path / "run" / "report.html").read_text()

"""A climb that was interrupted before its training has a report, and can be resumed."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepladder
from stepladder.checks import order
from stepladder.cli.main import main
from stepladder.errors import DataError
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.rungs.devices.gpu import UseGpu
from stepladder.rungs.speed.fused_optimizer import FusedOptimizer

TASK = """
import os, signal
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

LEDGER = Path("run/trials.jsonl")

class Signs(Task):
    def build_model(self, recipe):
        return nn.Linear(1, 2)
    def data(self, split):
        numbers = torch.linspace(-1, 1, 32).unsqueeze(1)
        return TensorDataset(numbers, (numbers[:, 0] > 0).long())
    def loss(self, model, batch):
        if Path("stop").exists() and b'"kind": "trial"' in LEDGER.read_bytes():
            Path("stop").rename("stopped")
            if Path("blocked").exists():
                Path("run/report.html").mkdir()
            os.kill(os.getpid(), signal.SIGTERM)
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""
CLIMB = [
    "climb", "signs.py:Signs", "--run.dir", "run", "--try-all", "--quiet", "--train", "all",
    "--no-auto", "--batch.lr", "0.1", "--schedule.max-epochs", "2", "--device.threads", "1",
    "--ladder.block-s", "0.01", "--ladder.num-seeds", "2",
]  # fmt: skip
UNCHECKED = ["--run.checks", "off"]  # output without checks


@pytest.fixture(name="interrupted")
def _interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Climb in its own folder until a signal ends it during the trial of the second rung."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_module, "RUNGS", (UseGpu(), FusedOptimizer()))
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    monkeypatch.setattr(order, "CHECKS", order.CHECKS[:3])  # others start four processes
    Path("signs.py").write_text(TASK)
    Path("stop").touch()
    return lambda *flags: main([*CLIMB, *flags])


def test_it_has_a_page_and_the_same_command_resumes(
    interrupted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert interrupted() == 128 + signal.SIGTERM
    assert "SIGTERM stopped the climb; all verdicts so far are in" in capsys.readouterr().err
    page = Path("run/report.html")
    names = sorted(path.name for path in Path("run").iterdir())
    assert names == ["checks.html", "checks.json", "report.html", "trials.jsonl"], "no training"
    assert "0 rungs kept" in page.read_text()
    page.unlink()
    assert main(["report", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(page)}
    assert "The climb has not ended" in page.read_text()
    assert "What was not tried, and why" in page.read_text()

    assert main(CLIMB) == 0
    assert Path("run/climb.json").is_file()
    assert "The climb has not ended" not in page.read_text()
    assert Path("run/trials.jsonl").read_text().count('"is_first": true') == 2

    capsys.readouterr()
    assert main([*(word for word in CLIMB if word != "--quiet"), "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "already holds a finished climb" in said[-2]["message"]
    assert said[-1] == {"event": "end"} | json.loads(Path("run/climb.json").read_text())


def test_a_page_that_cannot_be_written_does_not_hide_the_interruption(
    interrupted: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("blocked").touch()
    assert interrupted(*UNCHECKED) == 128 + signal.SIGTERM
    assert "SIGTERM stopped the climb; all verdicts so far are in" in capsys.readouterr().err
    assert Path("run/report.html").is_dir()


def test_the_page_of_an_existing_training_is_not_overwritten(
    interrupted: Callable[..., int],
) -> None:
    Path("stop").unlink()
    assert main([*CLIMB, *UNCHECKED]) == 0
    page = Path("run/report.html").read_text()
    Path("stop").touch()
    assert main([*CLIMB, *UNCHECKED, "--fresh"]) == 128 + signal.SIGTERM
    assert Path("stopped").exists()
    assert Path("run/report.html").read_text() == page


def test_its_folder_has_no_weights(interrupted: Callable[..., int]) -> None:
    assert interrupted(*UNCHECKED) == 128 + signal.SIGTERM
    assert stepladder.verify("run") == []
    with pytest.raises(DataError, match="this run has no checkpoint"):
        stepladder.predict("run", [])

"""A climb checks its job once per machine; the findings are stored and reused by later climbs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.api.checks import checks_before_climb
from stepladder.checks import order
from stepladder.checks.contract import Answer, Check, Tier, found, passed
from stepladder.checks.data import labels
from stepladder.checks.examples import Example
from stepladder.checks.job import CheckedJob
from stepladder.checks.report_file import read_checks, write_checks
from stepladder.cli.main import main
from stepladder.config.choices import Checks, Split
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.errors import UnsoundJob
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder import keys
from stepladder.records.findings import Severity
from stepladder.rungs.speed.fused_optimizer import FusedOptimizer
from stepladder.task.contract import Task


@dataclass
class Counting:
    """The only check; counts its runs, and returns a given finding."""

    num_runs: int = 0
    is_sound: bool = True

    def look(self, job: CheckedJob) -> Answer:
        self.num_runs += 1
        if self.is_sound:
            return passed("all is well")
        return found("label_range", f"label 9 of {len(job.sources.train)} rows", fix="Count again.")

    def before_climb(self, job: JobConfig, task: Task) -> list[str]:
        """Check as a climb does, and return the output."""
        said: list[str] = []
        checks_before_climb(job, task, message=said.append)
        return said


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Replace all checks by one that `train` skips, so that only climbs run it.

    Code counts as unchanged, though someone may edit it while tests run.
    """
    counting = Counting()
    check = Check(
        name="counting",
        reason="To count.",
        source="this test",
        severity=Severity.ERROR,
        tier=Tier.FULL,
        faults=labels.CHECK.faults,
        run=counting.look,
        broken=Example,
    )
    monkeypatch.setattr(order, "CHECKS", (check,))
    monkeypatch.setattr(keys, "code_key", lambda _: "this code")
    return counting


class Signs(Task):
    """Classify negative and positive numbers."""

    def __init__(self, num_rows: int = 32) -> None:
        self.num_rows = num_rows

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(1, 2)

    def data(self, split: Split) -> Any:
        numbers = torch.linspace(-1, 1, self.num_rows).unsqueeze(1)
        return TensorDataset(numbers, (numbers[:, 0] > 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def job_in(folder: Path, **run: Any) -> JobConfig:
    job = Example().config(folder)
    return replace(job, run=replace(job.run, **run))


def with_lr(job: JobConfig, lr: float) -> JobConfig:
    batch = replace(job.recipe.batch, lr=lr)
    return replace(job, recipe=replace(job.recipe, batch=batch))


# --- when a climb checks


def test_the_same_job_is_read_and_not_checked_again(counting: Counting, tmp_path: Path) -> None:
    counting.is_sound = False
    first = counting.before_climb(job_in(tmp_path), Signs())
    kept = (tmp_path / "run" / "checks.json").read_bytes()
    again = counting.before_climb(job_in(tmp_path), Signs())
    assert again[:-1] == first
    assert again[-1].startswith("checks: all results are from ")
    assert counting.num_runs == 1
    assert (tmp_path / "run" / "checks.json").read_bytes() == kept
    assert any("label 9 of 32 rows" in words for words in first), "an alarm is reported again"


@pytest.mark.parametrize(
    "change",
    [
        lambda job: (with_lr(job, 0.5), Signs()),
        lambda job: (job, Signs(num_rows=48)),
        lambda job: (replace(job, run=replace(job.run, save_top_k=3)), Signs()),
    ],
    ids=["recipe", "data", "what is kept"],
)
def test_a_changed_job_is_checked_again(
    change: Callable[[JobConfig], tuple[JobConfig, Task]], counting: Counting, tmp_path: Path
) -> None:
    counting.before_climb(job_in(tmp_path), Signs())
    changed, task = change(job_in(tmp_path))
    counting.before_climb(changed, task)
    assert counting.num_runs == 2
    counting.before_climb(changed, task)
    assert counting.num_runs == 2, "the changed one is stored as well"


@pytest.mark.parametrize("other", ["machine_key", "code_key"])
def test_another_machine_and_other_code_look_for_themselves(
    other: str, counting: Counting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counting.before_climb(job_in(tmp_path), Signs())
    monkeypatch.setattr(keys, other, lambda *_: "another")
    counting.before_climb(job_in(tmp_path), Signs())
    assert counting.num_runs == 2


@pytest.mark.parametrize("change", [{"tier": "fast"}, {"left_out": ("counting",)}])
def test_checks_that_were_not_all_made_do_not_count(
    change: dict[str, Any], counting: Counting, tmp_path: Path
) -> None:
    counting.before_climb(job_in(tmp_path), Signs())
    report = read_checks(tmp_path / "run")
    assert report is not None
    write_checks(tmp_path / "run", replace(report, **change))
    counting.before_climb(job_in(tmp_path), Signs())
    assert counting.num_runs == 2


@pytest.mark.parametrize("damage", ["", '{"tier": "full"}', "[]"])
def test_a_damaged_result_is_found_again(damage: str, counting: Counting, tmp_path: Path) -> None:
    said = counting.before_climb(job_in(tmp_path), Signs())
    (tmp_path / "run" / "checks.json").write_text(damage)
    assert counting.before_climb(job_in(tmp_path), Signs()) == said
    assert counting.num_runs == 2
    assert read_checks(tmp_path / "run") is not None


def test_a_kept_failure_stops_the_next_climb_too(counting: Counting, tmp_path: Path) -> None:
    counting.is_sound = False
    for _ in range(2):
        with pytest.raises(UnsoundJob, match="label 9 of 32 rows"):
            counting.before_climb(job_in(tmp_path, checks=Checks.STOP), Signs())
    assert counting.num_runs == 1


def test_what_is_off_is_not_checked(counting: Counting, tmp_path: Path) -> None:
    assert counting.before_climb(job_in(tmp_path, checks=Checks.OFF), Signs()) == []
    assert counting.num_runs == 0
    assert not (tmp_path / "run").exists()


# --- complete climbs

TASK = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

class Signs(Task):
    def build_model(self, recipe):
        return nn.Linear(1, 2)
    def data(self, split):
        numbers = torch.linspace(-1, 1, 32).unsqueeze(1)
        return TensorDataset(numbers, (numbers[:, 0] > 0).long())
    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""
CLIMB = [
    "climb", "signs.py:Signs", "--run.dir", "run", "--try-all", "--train", "all",
    "--batch.lr", "0.1", "--schedule.max-epochs", "2", "--device.threads", "1",
    "--ladder.block-s", "0.01", "--ladder.num-seeds", "2", "--json",
]  # fmt: skip


@pytest.fixture
def climb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that climbs one rung in its own folder and returns the output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(run_module, "RUNGS", (FusedOptimizer(),))
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    Path("signs.py").write_text(TASK)

    def climb(*flags: str) -> list[str]:
        assert main([*CLIMB, *flags]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [line["message"] for line in lines if "message" in line]

    return climb


def test_a_second_climb_of_the_job_checks_nothing_again(
    climb: Callable[..., list[str]], counting: Counting
) -> None:
    said = [words for words in climb() if words.startswith("checks: ")]
    assert counting.num_runs == 1
    assert len(said) == 1

    again = climb("--fresh")
    assert not any("already holds a finished climb" in words for words in again), "it did climb"
    assert said[0] in again
    assert counting.num_runs == 1

    climb("--overwrite", "--batch.lr", "0.05")
    assert counting.num_runs == 2

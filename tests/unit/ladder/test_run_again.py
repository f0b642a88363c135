"""A second climb with other options, and advice that writes nothing."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.utils.data import Dataset

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import DataError, UsageError
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder.climb_run import advise, climb
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import EARLIER_FILE, LEDGER_FILE, trials_of
from stepladder.records.ladder import Decision
from stepladder.rungs.speed import fewer_validations
from stepladder.rungs.speed.early_stopping import EarlyStopping
from stepladder.rungs.speed.fewer_validations import FewerValidations
from stepladder.task import Task
from stepladder.training.output.display import Display, PlainDisplay

LADDER = LadderConfig(block_s=0.01, num_seeds=2, try_all=True)


Again = Callable[..., tuple[dict[str, Any], str]]


def climb_in(
    folder: Path, task: Task, recipe: Recipe, **options: Any
) -> tuple[dict[str, Any], str]:
    """Climb with some ladder options; return the result and the output."""
    said = io.StringIO()
    job = JobConfig(recipe=recipe, run=RunConfig(dir=folder), ladder=replace(LADDER, **options))
    found = climb(job, task, task_name="blobs", display=PlainDisplay(said))
    return found, said.getvalue()


def of_one_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "RUNGS", (FewerValidations(),))
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    monkeypatch.setattr(fewer_validations, "_LARGE_FRAC", 0.0)  # whatever the machine needs for one


@pytest.fixture(name="first", scope="module")
def _first(
    tmp_path_factory: pytest.TempPathFactory, blobs: type[Task], recipe: Recipe
) -> tuple[Path, dict[str, Any]]:
    """A finished climb: its folder, to be copied, and its result."""
    folder = tmp_path_factory.mktemp("first") / "run"
    with pytest.MonkeyPatch.context() as monkeypatch:
        of_one_rung(monkeypatch)
        found, _ = climb_in(folder, blobs(), recipe)
    return folder, found


@pytest.fixture(name="again")
def _again(
    tmp_path: Path,
    blobs: type[Task],
    recipe: Recipe,
    first: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> Again:
    """Climb again in the folder of the first climb, with some ladder options."""
    of_one_rung(monkeypatch)
    folder = tmp_path / "runs" / "run"
    shutil.copytree(first[0], folder)
    return partial(climb_in, folder, blobs(), recipe)


def test_another_allowed_loss_is_tried_again_and_the_same_is_not(
    again: Again, first: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "run"
    (old,) = trials_of(folder / LEDGER_FILE)

    same, said = again(max_accuracy_loss=0.01)
    assert same == first[1]
    assert "already holds a finished climb" in said

    second, said = again(max_accuracy_loss=0.03)
    assert "verdicts are not reused" in said
    assert second["max_accuracy_loss"] == 0.03
    assert second["num_from_ledger"] == 0
    (new,) = trials_of(folder / LEDGER_FILE)
    assert new.options != old.options
    assert list(trials_of(folder / EARLIER_FILE)) == [old]


def test_a_result_that_cannot_be_read_is_found_once_more(
    again: Again, first: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "runs" / "run" / "climb.json"
    path.write_text(json.dumps(first[1] | {"speedup": "fast"}))
    second, said = again()
    assert "already holds a finished climb" not in said
    assert second["num_from_ledger"] == 1
    assert json.loads(path.read_text())["speedup"] == second["speedup"]


def test_a_missing_price_list_is_reported_after_the_climb(
    again: Again,
) -> None:
    with pytest.raises(DataError) as caught:
        again(prices=Path("none.csv"))
    assert caught.value.where == "none.csv"
    assert "--ladder.prices" in str(caught.value.fix)


def test_another_version_of_the_code_is_tried_again(
    again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lab, "commit", "another")
    found, said = again()
    assert "verdicts are not reused" in said
    assert found["num_from_ledger"] == 0


def test_rungs_that_were_skipped_are_tried_once_all_are_asked_for(
    again: Again, tmp_path: Path
) -> None:
    ledger = tmp_path / "runs" / "run" / LEDGER_FILE
    shutil.rmtree(ledger.parent)
    again(try_all=False, min_gain=50.0)
    assert [trial.verdict.decision for trial in trials_of(ledger)] == [Decision.SKIPPED]
    _, said = again(try_all=True, min_gain=50.0)
    assert "resuming with skipped rungs" in said
    tried = list(trials_of(ledger))[-1].verdict.decision
    assert tried in {Decision.KEPT, Decision.DROPPED, Decision.UNDECIDED}


class OtherData(Dataset):
    """The same number of points, at other positions."""

    def __init__(self, data: Dataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, idx: int) -> Any:
        x, target = self.data[idx]
        return x + 1, target


def test_a_task_that_gives_other_data_or_another_model_is_another_job(
    tmp_path: Path, blobs, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(blobs):
        def data(self, split: Split) -> Any:
            data = super().data(split)
            if other != "data":
                return data
            OtherData.__qualname__ = type(data).__qualname__  # a file with the same number of rows
            OtherData.__module__ = type(data).__module__
            return OtherData(data)

        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            if other == "model":
                model.trunk.append(nn.ReLU())
            return model

    other = ""
    monkeypatch.setattr(run_module, "RUNGS", ())
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    job = JobConfig(recipe=recipe, run=RunConfig(dir=tmp_path / "run"), ladder=LADDER)

    def run(**flags: bool) -> str:
        said = io.StringIO()
        climb(job, Other(), task_name="blobs", display=PlainDisplay(said), **flags)
        return said.getvalue()

    run()
    assert "already holds a finished climb" in run()
    other = "data"
    with pytest.raises(UsageError, match="the folder contains another run"):
        run()
    other = "model"
    with pytest.raises(UsageError, match="the folder contains another run"):
        run()
    assert "already holds a finished climb" not in run(may_overwrite=True)


def test_what_a_killed_climb_kept_goes_and_what_a_running_process_keeps_stays(
    tmp_path: Path, blobs, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RUNGS", ())
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = tmp_path / "runs" / "run"
    owners = {"killed": gone.pid, "ours": os.getpid(), "running": os.getppid()}
    for name, pid in owners.items():
        copies = folder / f".ladder-{name}.{pid}.tmp" / "copies"
        copies.mkdir(parents=True)
        (copies / "pixels").write_bytes(bytes(10))
    (folder / ".ladder-older").mkdir()
    job = JobConfig(recipe=recipe, run=RunConfig(dir=folder), ladder=LADDER)
    climb(job, blobs(), task_name="blobs", display=Display(io.StringIO()))
    assert [path.name for path in folder.glob(".ladder-*")] == [
        f".ladder-running.{os.getppid()}.tmp"
    ]


def test_advice_writes_nothing_next_to_the_run_and_needs_no_folder(
    tmp_path: Path, blobs, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RUNGS", (EarlyStopping(),))
    of_system = tmp_path / "system"
    of_system.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(of_system))
    file = tmp_path / "a_file"
    file.write_text("")
    beside = file.parent / "beside"
    beside.mkdir()
    beside.chmod(0o500)
    for folder in (file / "run", beside / "run"):
        job = JobConfig(
            recipe=recipe, run=RunConfig(dir=folder), ladder=replace(LADDER, budget_s=4)
        )
        _, text = advise(job, blobs(), task_name="blobs", display=Display(io.StringIO()))
        assert "next: " in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_file", "beside", "system"]
    assert not list(beside.iterdir())
    assert not list(of_system.iterdir())

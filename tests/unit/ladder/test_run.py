"""What a climb does with a folder that holds something already."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.errors import UsageError
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.run import climb
from stepladder.records import read_json
from stepladder.train.display import Display
from stepladder.train.run import train

LADDER = LadderConfig(budget_s=4.0, block_s=0.01, num_seeds=2)


def job_in(folder: Path, recipe) -> JobConfig:
    return JobConfig(recipe=recipe, run=RunConfig(dir=folder), ladder=LADDER)


def quiet() -> Display:
    return Display(io.StringIO())


@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_plain_training_is_not_replaced_unasked(
    tmp_path: Path, blobs, recipe, is_fresh: bool
) -> None:
    job = job_in(tmp_path / "run", recipe)
    train(job, blobs(), task_name="blobs", display=quiet())
    before = (job.run.dir / "summary.json").read_bytes()
    with pytest.raises(UsageError, match="no climb of this job"):
        climb(job, blobs(), task_name="blobs", display=quiet(), is_fresh=is_fresh)
    assert (job.run.dir / "summary.json").read_bytes() == before


@pytest.mark.slow
def test_another_job_in_the_folder_of_a_climb_is_refused_and_fresh_trains_anew(
    tmp_path: Path, blobs, recipe
) -> None:
    job = job_in(tmp_path / "runs" / "run", recipe)
    climb(job, blobs(), task_name="blobs", display=quiet())
    summary = job.run.dir / "summary.json"
    before = summary.stat().st_mtime_ns
    other = replace(job, recipe=replace(recipe, seed=recipe.seed + 1))
    with pytest.raises(UsageError, match="no climb of this job"):
        climb(other, blobs(), task_name="blobs", display=quiet())
    assert summary.stat().st_mtime_ns == before

    again = climb(job, blobs(), task_name="blobs", display=quiet(), is_fresh=True)
    assert summary.stat().st_mtime_ns > before, "the training is a new one"
    assert again == read_json(job.run.dir / "climb.json")


def test_an_earlier_ledger_names_its_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.job() is None
    ledger.begin(job="one", machine="here", is_fresh=False)
    assert ledger.job() == "one"

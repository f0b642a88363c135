"""`fit-recipe` from a job to its files: ledger, summary, recipe and page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepladder import fit_recipe
from stepladder.config.choices import Checks
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder.ledger import LEDGER_FILE, trials_of
from stepladder.ladder.summary.climb_summary import end_words
from stepladder.records import read_json
from stepladder.records.climb import ClimbSummary
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Aim, Decision
from stepladder.rungs.accuracy.learning_rate_higher import LearningRateHigher
from stepladder.rungs.accuracy.weight_decay import WeightDecay
from stepladder.task import Task


@pytest.mark.thorough
@pytest.mark.slow
def test_a_rate_that_is_far_too_low_ends_as_a_recipe_that_learns(
    tmp_path: Path, blobs: type[Task], recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "REMEDIES", (LearningRateHigher(), WeightDecay()))
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)
    slow = replace(recipe, batch=replace(recipe.batch, lr=recipe.batch.lr / 100))
    job = JobConfig(
        recipe=slow,
        run=RunConfig(dir=tmp_path / "runs" / "fit", checks=Checks.OFF),
        ladder=LadderConfig(block_s=0.002, num_seeds=3, time_per_point=10),
    )
    done = fit_recipe(task=blobs(), config=job)
    trials = list(trials_of(done.path / LEDGER_FILE))
    kept = [trial.rung for trial in trials if trial.verdict.decision is Decision.KEPT]
    assert "learning_rate_higher" in kept
    assert load_job(done.path / "config.yaml").recipe.batch.lr > slow.batch.lr
    summary = from_json(ClimbSummary, read_json(done.path / "climb.json"))
    assert summary.aim is Aim.ACCURACY
    assert summary.fit_before is not None
    assert summary.fit_after is not None
    assert summary.fit_after.training < summary.fit_before.training
    assert "training error" in end_words(summary)
    page = (done.path / "report.html").read_text()
    assert "points on test" in page
    assert "Each row is a remedy" in page
    assert "learning_rate_higher" in page

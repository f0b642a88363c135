"""Climbs in a folder that is not empty."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.errors import UsageError
from stepladder.ladder import climb as climb_module
from stepladder.ladder import climb_run as run_module
from stepladder.ladder.climb_run import climb
from stepladder.ladder.keys import prices_key
from stepladder.ladder.ledger import LEDGER_FILE, Ledger, trials_of
from stepladder.ladder.revisit import more_to_try
from stepladder.ladder.summary.final_training import keys_in, seconds_of_used
from stepladder.records import read_json
from stepladder.records.ladder import Decision, Trial, Verdict
from stepladder.rungs.speed.cached_features import CachedFeatures
from stepladder.training.output.display import Display, PlainDisplay
from stepladder.training.run import train

LADDER = LadderConfig(block_s=0.01, num_seeds=2)


@pytest.fixture(autouse=True)
def _no_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rung is tried unless a test names it, and profiles are short."""
    monkeypatch.setattr(run_module, "RUNGS", ())
    monkeypatch.setattr(climb_module, "PROFILE_S", 0.2)


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
    with pytest.raises(UsageError, match="the folder contains another run"):
        climb(job, blobs(), task_name="blobs", display=quiet(), is_fresh=is_fresh)
    assert (job.run.dir / "summary.json").read_bytes() == before


def test_another_job_in_the_folder_of_a_climb_is_refused_and_fresh_starts_over(
    tmp_path: Path, blobs, recipe
) -> None:
    job = job_in(tmp_path / "runs" / "run", recipe)
    climb(job, blobs(), task_name="blobs", display=quiet())
    summary = job.run.dir / "summary.json"
    before = summary.stat().st_mtime_ns
    other = replace(job, recipe=replace(recipe, seed=recipe.seed + 1))
    with pytest.raises(UsageError, match="the folder contains another run"):
        climb(other, blobs(), task_name="blobs", display=quiet())
    assert summary.stat().st_mtime_ns == before

    again = climb(job, blobs(), task_name="blobs", display=quiet(), is_fresh=True)
    assert summary.stat().st_mtime_ns > before, "the training is a new one"
    assert again == read_json(job.run.dir / "climb.json")


def test_what_a_budget_left_untried_is_tried_once_there_is_more(
    tmp_path: Path, blobs, recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "RUNGS", (CachedFeatures(),))
    whole = job_in(tmp_path / "runs" / "run", recipe)
    whole = replace(whole, ladder=replace(LADDER, try_all=True))
    short = replace(whole, ladder=replace(whole.ladder, budget_s=1e-3))
    ledger = short.run.dir / LEDGER_FILE
    first = climb(short, blobs(), task_name="blobs", display=quiet())
    assert first["untried"] == ["cached_features"]
    assert first["baseline"]["val_accuracy"] is None

    before, said = ledger.read_bytes(), io.StringIO()
    assert climb(short, blobs(), task_name="blobs", display=PlainDisplay(said)) == first
    assert (
        "already holds a finished climb of this job; a larger --budget tries cached_features; "
        in said.getvalue()
    )
    assert ledger.read_bytes() == before, "the same time leaves the same rungs untried"

    said = io.StringIO()
    last = climb(whole, blobs(), task_name="blobs", display=PlainDisplay(said))
    assert "resuming with rungs that the budget left untried: cached_features" in said.getvalue()
    assert last["untried"] == []
    untried, tried = trials_of(ledger)
    assert untried.verdict.decision is Decision.UNTRIED
    assert tried.before is not None
    is_kept = tried.verdict.decision is Decision.KEPT
    assert ("cached: true" in (whole.run.dir / "config.yaml").read_text()) == is_kept
    assert read_json(whole.run.dir / "summary.json")["status"] == "finished"
    assert last == read_json(whole.run.dir / "climb.json")


def test_the_table_begins_with_the_accuracy_of_the_original_job(
    tmp_path: Path, blobs, recipe
) -> None:
    job = job_in(tmp_path / "run", recipe)
    said = io.StringIO()
    found = climb(job, blobs(), task_name="blobs", display=PlainDisplay(said))
    accuracy = found["baseline"]["val_accuracy"]
    with (job.run.dir / "predictions.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "val"]
    num_right = sum(row["label"] == row["predicted"] for row in rows)
    assert accuracy == pytest.approx(num_right / 30), "nothing was changed, so it stays"
    assert found["baseline"]["provenance"] == "replayed"
    (line,) = [line for line in said.getvalue().splitlines() if "0 original" in line]
    assert f"val {100 * accuracy:.1f} %" in line


def test_features_that_were_found_ready_count_and_removed_ones_do_not(tmp_path: Path) -> None:
    for key, seconds, split in (
        ("used", 3.0, "train"),
        ("left alone", 5.0, "train"),
        ("removed", 7.0, "train"),
        ("of test", 11.0, "test"),
    ):
        (tmp_path / key).mkdir()
        manifest = {"seconds": seconds, "split": split}
        (tmp_path / key / "manifest.json").write_text(json.dumps(manifest))
        os.utime(tmp_path / key, (100, 100))
    ready = keys_in(tmp_path)
    assert ready == {"used", "left alone", "removed", "of test"}
    for used in ("used", "of test"):
        os.utime(tmp_path / used, (300, 300))
    shutil.rmtree(tmp_path / "removed")
    assert seconds_of_used(tmp_path, ready, since=200.0) == 3.0


def test_an_earlier_ledger_names_its_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.job() is None
    ledger.begin(job="one", machine="here", options="some", commit="one", is_fresh=False)
    assert ledger.job() == "one"


@pytest.mark.parametrize(
    ("then_s", "now_s", "for_untried", "for_undecided"),
    [
        (None, None, False, False),
        (None, 7200.0, False, True),
        (None, 60.0, False, False),
        (60.0, None, True, True),
        (7200.0, None, True, False),
        (60.0, 120.0, True, True),
    ],
)
def test_a_climb_resumes_where_its_time_allows_more_than_before(
    then_s: float | None,
    now_s: float | None,
    for_untried: bool,
    for_undecided: bool,
) -> None:
    def has_more(untried: list[str], trials: Sequence[Trial] = ()) -> bool:
        done = {"untried": untried, "budget_s": then_s, "try_all": False}
        return more_to_try(done, trials, LadderConfig(budget_s=now_s)) is not None

    assert has_more(["a_rung"]) == for_untried
    verdict = Verdict(decision=Decision.UNDECIDED, reason="not compared")
    open_ = Trial(rung="one", level=4, change={}, prediction=None, verdict=verdict)
    assert has_more([], [open_]) == for_undecided
    kept = replace(open_, verdict=Verdict(decision=Decision.KEPT, reason=""))
    assert not has_more([], [open_, kept])


def test_a_climb_resumes_where_a_changed_condition_stopped_it(tmp_path: Path) -> None:
    prices, others = tmp_path / "prices.csv", tmp_path / "others.csv"
    prices.write_text("one")
    others.write_text("two")
    now = LadderConfig(max_cache_bytes=10, prices=prices)
    done = {"max_cache_bytes": 10, "prices": prices_key(now)}
    assert more_to_try(done, [], now) is None
    assert more_to_try({}, [], now) is None, "a climb of an earlier version does not record it"
    assert more_to_try(done, [], replace(now, max_cache_bytes=9)) is None
    for kind, options, words in (
        (done, replace(now, max_cache_bytes=11), "larger ladder.max_cache_bytes"),
        (done, replace(now, prices=others), "GPUs"),
        (done, replace(now, prices=None), "GPUs"),
        (done | {"why_no_advice": "20 % is in no phase"}, now, "did not add up"),
    ):
        assert words in str(more_to_try(kind, [], options))

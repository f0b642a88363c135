"""The ledger: append-only, resumable, never rewritten."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.config.choices import Where
from stepladder.errors import ResourceError
from stepladder.ladder.ledger import EARLIER_FILE, LEDGER_FILE, Ledger, trials_of
from stepladder.records import read_jsonl, to_json
from stepladder.records.climb import Baseline
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Profile, Provenance, TrainingTime

TIME = TrainingTime(
    one_time_s={"features": 2.0}, epochs=3.0, steps_per_epoch=10.0, step_s=0.1, num_validations=3.0
)
TRIAL = Trial(
    rung="channels_last",
    level=6,
    change={"device.memory_format": ("contiguous", "channels_last")},
    prediction=Prediction(rung="channels_last", gain=2.0, provenance=Provenance.REPLAYED),
    before=TIME,
    after=replace(TIME, step_s=0.05),
    before_s=(5.0, 5.1),
    after_s=(3.5, 3.4),
    verdict=Verdict(
        decision=Decision.KEPT,
        reason="twice as fast",
        speed=Interval(estimate=1.5, low=1.4, high=1.6),
        exactness="same to 1e-5",
    ),
    job="job",
    machine="machine",
    recipe="recipe",
    options="options",
    commit="commit",
)
GROUND = {"job": "job", "machine": "machine", "options": "options", "commit": "commit"}
KEYS = {**GROUND, "recipe": "recipe", "rung": "channels_last"}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run"  # no other ledger is next to it


@pytest.fixture(name="profile")
def _profile(profile_of: Callable[..., Profile]) -> Profile:
    return profile_of(
        TIME,
        step_by_batch_s={1: 0.1, 2: 0.15, 4: 0.25},
        provenance={"num_train": Provenance.READ, "step_by_batch_s": Provenance.MEASURED},
    )


def begun(folder: Path) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder)
    assert not ledger.begin(**GROUND, is_fresh=False)
    return ledger


def test_a_trial_comes_back_as_it_was_written(folder: Path) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    assert list(trials_of(ledger.path)) == [TRIAL]
    assert ledger.find(**KEYS) == TRIAL


@pytest.mark.parametrize("other", KEYS)
def test_a_verdict_holds_only_for_its_own_ground_recipe_and_rung(folder: Path, other: str) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    assert ledger.find(**KEYS | {other: "another"}) is None


def test_a_line_without_a_key_of_its_options_is_not_a_verdict(folder: Path) -> None:
    ledger = begun(folder)
    old = to_json(TRIAL)
    del old["options"]
    with ledger.path.open("a") as file:
        file.write(json.dumps({"kind": "trial", "trial": old}) + "\n")
    assert [trial.options for trial in trials_of(ledger.path)] == [""]
    assert ledger.find(**KEYS) is None


def test_what_came_of_a_failure_is_tried_again_and_what_was_measured_is_not(folder: Path) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    hung = Verdict(decision=Decision.DROPPED, reason="hung: not finished after 60 s")
    ledger.trial(replace(TRIAL, verdict=hung))
    assert ledger.find(**KEYS) is None
    slower = replace(TRIAL, verdict=replace(TRIAL.verdict, decision=Decision.DROPPED))
    ledger.trial(slower)
    assert ledger.find(**KEYS) == slower


def test_an_unreadable_ledger_in_another_run_is_skipped(folder: Path) -> None:
    (folder.parent / "another" / LEDGER_FILE).mkdir(parents=True)
    begun(folder.parent / "older").trial(TRIAL)
    assert begun(folder).find(**KEYS) == TRIAL


@pytest.mark.parametrize("decision", [Decision.SKIPPED, Decision.UNTRIED, Decision.NOT_HERE])
def test_what_was_not_tried_is_not_a_verdict(folder: Path, decision: Decision) -> None:
    ledger = begun(folder)
    ledger.trial(replace(TRIAL, verdict=Verdict(decision=decision, reason="")))
    assert ledger.find(**KEYS) is None


def test_the_newest_verdict_counts_and_other_runs_come_last(folder: Path) -> None:
    undecided = replace(TRIAL, verdict=replace(TRIAL.verdict, decision=Decision.UNDECIDED))
    begun(folder.parent / "older").trial(TRIAL)
    ledger = begun(folder)
    assert ledger.find(**KEYS) == TRIAL
    ledger.trial(undecided)
    assert ledger.find(**KEYS) == undecided


def test_the_same_job_resumes_and_another_keeps_the_earlier_lines(folder: Path) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    assert ledger.begin(**GROUND, is_fresh=False)
    assert len(list(trials_of(ledger.path))) == 1

    assert not ledger.begin(**GROUND | {"job": "other"}, is_fresh=False)
    assert list(trials_of(ledger.path)) == []
    assert list(trials_of(folder / EARLIER_FILE)) == [TRIAL]


@pytest.mark.parametrize(("other", "is_measured"), [("options", True), ("commit", False)])
def test_other_options_set_verdicts_aside_and_keep_what_was_measured_by_the_same_code(
    folder: Path, profile: Profile, other: str, is_measured: bool
) -> None:
    ledger = begun(folder)
    ledger.profile(profile, recipe="one", at_s=1.0)
    ledger.baseline(Baseline(total_s=90.0))
    ledger.trial(TRIAL)
    assert not ledger.begin(**GROUND | {other: "another"}, is_fresh=False)
    assert list(trials_of(ledger.path)) == []
    assert list(trials_of(folder / EARLIER_FILE)) == [TRIAL]
    assert (ledger.find_profile("one") == profile) == is_measured
    assert (ledger.find_baseline() is not None) == is_measured
    assert ledger.begin(**GROUND | {other: "another"}, is_fresh=False)


def test_where_pictures_were_held_is_kept_and_asks_for_no_new_ledger(folder: Path) -> None:
    ledger = begun(folder)
    assert ledger.where() is None
    assert not ledger.begin(**GROUND, is_fresh=True, where=Where.MEMORY)
    assert ledger.begin(**GROUND, is_fresh=False, where=Where.STREAM)
    assert ledger.where() is Where.MEMORY


def test_fresh_sets_the_earlier_lines_aside(folder: Path) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    assert not ledger.begin(**GROUND, is_fresh=True)
    assert list(trials_of(ledger.path)) == []
    assert list(trials_of(folder / EARLIER_FILE)) == [TRIAL]


def test_half_a_line_from_a_kill_is_passed_over_and_the_next_line_is_whole(folder: Path) -> None:
    ledger = begun(folder)
    ledger.trial(TRIAL)
    with ledger.path.open("a") as file:
        file.write('{"kind": "trial", "trial": {"rung": "ha')
    ledger.trial(TRIAL)
    assert list(trials_of(ledger.path)) == [TRIAL, TRIAL]


def test_lines_of_another_version_are_passed_over(folder: Path) -> None:
    ledger = begun(folder)
    with ledger.path.open("a") as file:
        file.write(json.dumps({"kind": "trial", "trial": {"rung": "x", "level": "high"}}) + "\n")
        file.write(json.dumps({"kind": "trial"}) + "\n")
        file.write(json.dumps({"kind": "a new kind"}) + "\n")
    ledger.trial(TRIAL)
    assert list(trials_of(ledger.path)) == [TRIAL]


def test_a_prediction_is_a_line_of_its_own(folder: Path) -> None:
    ledger = begun(folder)
    assert TRIAL.prediction is not None
    ledger.prediction(TRIAL.prediction, recipe="recipe")
    _, line = read_jsonl(folder / LEDGER_FILE)
    assert line["kind"] == "prediction"
    assert (line["rung"], line["recipe"]) == (TRIAL.rung, TRIAL.recipe)
    assert line["prediction"] == to_json(TRIAL.prediction)


def test_a_ledger_that_cannot_be_written_or_read_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = begun(folder)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ResourceError, match="could not be written: No space left") as caught:
            ledger.trial(TRIAL)
    assert caught.value.where == str(ledger.path)
    assert "free some space, then run the same command again" in str(caught.value)

    ledger.path.unlink()
    ledger.path.mkdir()
    with pytest.raises(ResourceError, match="cannot be read") as caught:
        list(trials_of(ledger.path))
    assert caught.value.where == str(ledger.path)
    assert "chmod u+r" in str(caught.value)


def test_a_baseline_and_a_profile_come_back(folder: Path, profile: Profile) -> None:
    ledger = begun(folder)
    assert ledger.find_baseline() is None
    ledger.baseline(Baseline(total_s=90.0, measured_epochs=1.5))
    assert ledger.find_baseline() == Baseline(total_s=90.0, measured_epochs=1.5)

    ledger.profile(profile, recipe="one", at_s=1.0)
    assert ledger.find_profile("one") == profile
    assert ledger.find_profile("another") is None


def test_the_first_profile_of_each_climb_is_marked(folder: Path, profile: Profile) -> None:
    begun(folder)
    for _ in range(2):
        ledger = Ledger(folder)
        ledger.profile(profile, recipe="one", at_s=1.0)
        ledger.profile(profile, recipe="another", at_s=2.0)
    _, *lines = read_jsonl(folder / LEDGER_FILE)
    assert [line["is_first"] for line in lines] == [True, False, True, False]

"""A climb that was resumed has several passes: the page shows one and counts the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.ladder.ledger import Ledger
from stepladder.ladder.summary.calibration import calibration_of
from stepladder.records import read_json, write_json
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Provenance, TrainingTime
from stepladder.reporting.ladder.climb_data import ClimbRecords, read_climb
from stepladder.reporting.ladder.picture import ladder_picture
from stepladder.reporting.pages.report_page import write_report

Build = Callable[..., Path]
KEPT, UNDECIDED = Decision.KEPT, Decision.UNDECIDED


def trial(rung: str, before_s: float, gain: float, decision: Decision, *, recipe: str) -> Trial:
    """Return a trial on a recipe that takes some seconds."""
    speed = Interval(estimate=gain, low=0.95 * gain, high=1.05 * gain)
    return Trial(
        rung=rung,
        level=6,
        change={rung: (False, True)},
        prediction=Prediction(rung=rung, gain=gain, provenance=Provenance.MODELLED),
        before=TrainingTime(epochs=1, steps_per_epoch=1, step_s=before_s),
        verdict=Verdict(decision=decision, reason=f"on {recipe}", speed=speed),
        recipe=recipe,
    )


FIRST = trial("first", 80, 2, KEPT, recipe="unmodified")
OPEN = trial("open", 40, 1.25, UNDECIDED, recipe="with first")
LATER = trial("later", 40, 2, KEPT, recipe="with first")
DECIDED = trial("open", 40, 1.25, KEPT, recipe="with first")
ANEW = trial("later", 32, 2, KEPT, recipe="with first and open")
WAY = (FIRST, OPEN, LATER)
OTHER_WAY = (FIRST, DECIDED, ANEW)


@pytest.fixture(name="go_up")
def _go_up(tmp_path: Path, build_climb: Build) -> Callable[..., Path]:
    """Append another climb to a folder's ledger, in the ladder's format."""
    built = read_climb(build_climb(tmp_path / "built"), [])
    assert built is not None
    (profile, *_) = built.profiles

    def write(trials: Iterable[Trial], *, took_s: float | None = None) -> Path:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        ledger = Ledger(folder)
        ledger.profile(profile, recipe="unmodified", at_s=0.1)
        for made in trials:
            ledger.trial(made)
            if made.verdict.decision is KEPT:
                after = replace(profile, num_train=profile.num_train + len(made.recipe))
                ledger.profile(after, recipe=f"{made.recipe} and {made.rung}", at_s=0.2)
        if took_s is not None:
            ledger.spent(took_s)
        return folder

    return write


def ended(folder: Path, built: Path, *, climb_s: float) -> None:
    """Write climb.json as a climb does at its end."""
    write_json(folder / "climb.json", read_json(built / "climb.json") | {"climb_s": climb_s})


def climb_of(folder: Path) -> ClimbRecords:
    climb = read_climb(folder, [])
    assert climb is not None
    return climb


def page_of(folder: Path) -> str:
    text = re.sub(r"<[^>]*>", " ", write_report(folder).read_text(encoding="utf-8"))
    return " ".join(text.split())


def test_a_climb_that_decides_more_on_its_second_way_is_shown_by_that_way_alone(
    go_up: Callable[..., Path], tmp_path: Path
) -> None:
    go_up(WAY, took_s=30.0)
    folder = go_up(OTHER_WAY, took_s=20.0)
    ended(folder, tmp_path / "built", climb_s=50.0)
    climb = climb_of(folder)
    assert climb.trials == OTHER_WAY
    assert [p.num_train for p in climb.profiles] == [675, 685, 685, 694]
    picture = ladder_picture(climb)
    assert picture is not None
    ways = [re.findall(r'class="way" d="M([\d.]+) 20V', str(step.strip)) for step in picture.steps]
    ends = [float(found[0]) for found in ways if found]
    assert len(ends) == 4, "original, and after each rung"
    assert ends == sorted(ends, reverse=True), "the line moves left only"
    text = page_of(folder)
    assert "is tried again" not in text
    assert "Not shown: 2 trials of other climbs of this job" in text
    assert len(calibration_of([folder]).cases) == 5, "`stepladder ledger` shows every trial"


def test_a_climb_that_was_only_interrupted_leaves_nothing_out(go_up: Callable[..., Path]) -> None:
    go_up(WAY[:2])
    folder = go_up(WAY)
    assert climb_of(folder).trials == WAY
    assert "Not shown" not in page_of(folder)


def test_a_second_trial_of_one_climb_is_shown(go_up: Callable[..., Path]) -> None:
    again = replace(OPEN, recipe="with first and later")
    folder = go_up((*WAY, again))
    assert climb_of(folder).trials == (*WAY, again)
    text = page_of(folder)
    assert "is tried again after others were kept" in text
    assert "Not shown" not in text


@pytest.mark.parametrize("decided", [OTHER_WAY[:2], OTHER_WAY])
def test_a_resumed_unfinished_climb_leaves_the_page_of_the_one_before(
    go_up: Callable[..., Path], tmp_path: Path, decided: tuple[Trial, ...]
) -> None:
    folder = go_up(WAY, took_s=30.0)
    ended(folder, tmp_path / "built", climb_s=30.0)
    assert climb_of(go_up(decided, took_s=9.0)).trials == WAY
    assert f"Not shown: {len(decided) - 1} trial" in page_of(folder)


def test_without_an_end_the_last_way_that_came_as_far_as_any_is_shown(
    go_up: Callable[..., Path],
) -> None:
    assert climb_of(go_up(WAY)).trials == WAY
    assert climb_of(go_up(OTHER_WAY[:2])).trials == WAY
    assert climb_of(go_up(())).trials == WAY
    assert climb_of(go_up(OTHER_WAY)).trials == OTHER_WAY


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_ledger_that_marks_no_way_is_parted_where_a_climb_ended(
    go_up: Callable[..., Path], was_killed: bool
) -> None:
    go_up(WAY, took_s=None if was_killed else 30.0)
    path = go_up(OTHER_WAY) / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line.pop("is_first", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    all_trials = (*WAY, DECIDED, ANEW)
    assert climb_of(path.parent).trials == (all_trials if was_killed else OTHER_WAY)


@pytest.mark.parametrize("seconds", ["nan", None, [], "soon", 0.25])
def test_a_climb_that_was_stopped_before_it_set_out_or_an_odd_time_changes_nothing(
    go_up: Callable[..., Path], tmp_path: Path, seconds: object
) -> None:
    folder = go_up(WAY, took_s=30.0)
    with (folder / "trials.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "spent", "seconds": seconds}) + "\n")
    ended(folder, tmp_path / "built", climb_s=30.0)
    assert climb_of(go_up(OTHER_WAY)).trials == WAY

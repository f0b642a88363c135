"""A result is written again from what was measured, round by round, and nothing is measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepladder.records import to_json
from stepladder.records.climb import Baseline, ClimbSummary, Result
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Provenance

Import = Callable[[str], ModuleType]
Change = Mapping[str, tuple[Any, Any]]

PLACE = {"python": "3.0", "git": {"commit": "abc"}}


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(to_json(line))}\n" for line in lines))
    return path


def tried(
    rung: str, decision: Decision, change: Change | None = None, *, gain: float | None = None
) -> Trial:
    speed = Interval(estimate=gain, low=gain, high=gain) if gain is not None else None
    prediction = Prediction(rung=rung, gain=2.0, provenance=Provenance.MODELLED)
    return Trial(
        rung=rung,
        level=5,
        change=change or {},
        prediction=prediction,
        verdict=Verdict(decision=decision, reason="", speed=speed),
    )


def write_climb(run: Path, climb_s: float, *trials: Trial) -> None:
    """Write what a climb that ended leaves in its folder."""
    run.mkdir(parents=True)
    summary = ClimbSummary(
        baseline=Baseline(total_s=80.0), result=Result(total_s=8.0), climb_s=climb_s, speedup=10.0
    )
    (run / "climb.json").write_text(json.dumps(to_json(summary)))
    (run / "env.json").write_text(json.dumps(PLACE))
    write_lines(run / "trials.jsonl", ({"kind": "trial", "trial": trial} for trial in trials))


def written(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run a script's main function with flags."""
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    script.main()


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("this would measure something")


def test_what_was_kept_is_told_from_the_job_as_written(module: Import) -> None:
    early = "stopping.early"
    trials = [
        tried("early_stopping", Decision.UNDECIDED, {early: (False, True)}),
        tried("cached_features", Decision.KEPT, {"features.cached": (False, True)}),
        tried("larger_batch", Decision.KEPT, {"batch.lr": (0.001, 0.002)}),
        tried("scaled_lr", Decision.KEPT, {"batch.lr": (0.002, 0.004)}),
        tried("compile", Decision.KEPT, {"device.compile": (False, True)}),
        tried("compile", Decision.DROPPED, {"device.compile": (False, True)}),  # undone
        tried("early_stopping", Decision.KEPT, {early: (False, True)}),
    ]
    assert module("climb_record").kept_change(trials) == {
        "features.cached": [False, True],
        "batch.lr": [0.001, 0.004],
        early: [False, True],
    }


def test_climbs_are_written_again_from_their_folders(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climbs = module("climbs")
    monkeypatch.setattr(climbs, "SCRIPT", tmp_path / "none.py")  # a climb would fail
    kept = tried("cached_features", Decision.KEPT, {"features.cached": (False, True)}, gain=3.0)
    for idx, climb_s in enumerate((200.0, 240.0, 260.0)):
        write_climb(tmp_path / f"{idx:02d}" / "frozen_batch_2", climb_s, kept)
    written(climbs, monkeypatch, "--climbs", "3", "--runs", str(tmp_path))
    result = read(results / "climbs.json")
    assert "2 of 3 ended within 240 s" in result["note"]
    assert "2 of 3 ended within 240 s" in (results / "climbs.md").read_text()
    assert [one["seed"] for one in result["rounds"]] == [0, 1, 2]
    assert [one["climb_s"] for one in result["rounds"]] == [200.0, 240.0, 260.0]
    first = result["rounds"][0]
    assert first["kept_change"] == {"features.cached": [False, True]}
    assert first["as_written"]["total_s"] == 80.0
    assert first["commit"] == "abc"
    (verdict,) = first["verdicts"]
    assert (verdict["rung"], verdict["decision"]) == ("cached_features", "kept")
    assert verdict["gain"]["estimate"] == 3.0
    assert result["environment"] == PLACE


def test_predictions_are_written_again_from_their_folders(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictions = module("predictions")
    monkeypatch.setattr(predictions, "SCRIPT", tmp_path / "none.py")
    run = tmp_path / "text_batch_8"
    write_climb(run, 100.0, tried("larger_batch", Decision.KEPT, gain=2.5))
    (run / "advised.json").write_text('{"advised": "larger_batch", "was": "kept", "is": "kept"}')
    written(predictions, monkeypatch, "--workloads", run.name, "--runs", str(tmp_path))
    (found,) = read(results / "predictions.json")["rounds"]
    assert (found["workload"], found["climb_s"]) == (run.name, 100.0)
    assert [one["rung"] for one in found["verdicts"]] == ["larger_batch"]
    assert read(results / "predictions_cases.json")["environment"] == PLACE
    assert read(results / "advised.json")["rows"][0]["was"] == "kept"


def test_the_time_to_accuracy_is_written_again_from_its_log(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = module("time_to_accuracy")
    monkeypatch.setattr(contest, "CONTENDERS", tmp_path / "none")  # a contender would fail
    monkeypatch.setattr(contest, "DEMO", tmp_path / "demo")
    for split in ("train", "val", "test"):
        (tmp_path / "demo" / split / "apple").mkdir(parents=True)
        (tmp_path / "demo" / split / "apple" / "0.jpg").touch()
    lines: list[dict[str, Any]] = [{"environment": PLACE}]
    for at in range(2):
        for idx, name in enumerate(contest.SCRIPTS):
            result = {"seconds": 2.0 + idx + at, "epochs": 3, "test_accuracy": 0.5, "start_s": 1.0}
            lines.append({"dataset": "demo", "contender": name, "round": at, **result})
    ours = next(line for line in lines if line.get("contender") == contest.OURS)
    ours["kept_config"] = "seed: 0\n"
    log = write_lines(tmp_path / "log.jsonl", lines)
    written(contest, monkeypatch, "--rounds", "2", "--log", str(log))
    result = read(results / "time_to_accuracy.json")
    assert result["rounds"] == lines
    assert result["environment"] == PLACE
    assert {row["contender"]: row["n"] for row in result["rows"]} == dict.fromkeys(
        contest.SCRIPTS, 2
    )
    assert "kept_config" not in (results / "time_to_accuracy.md").read_text()
    assert log.read_text().count("\n") == len(lines), "nothing was added"


def test_verdicts_are_written_again_from_their_log(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = module("verdicts")
    monkeypatch.setitem(verdicts.JOBS, "rings", refuse)
    decided = ((Decision.KEPT, 1.04), (Decision.DROPPED, 0.96), (Decision.DROPPED, 1.0))
    lines = [
        {"job": "rings", "block_s": 0.1, **verdicts.record(tried("identity", decision, gain=gain))}
        for decision, gain in decided
    ]
    log = write_lines(tmp_path / "log.jsonl", [{"environment": PLACE}, *lines])
    words = ["--trials", "3", "--jobs", "rings", "--block", "0.1", "--log", str(log)]
    written(verdicts, monkeypatch, *words)
    result = read(results / "verdicts.json")
    (row,) = result["rows"]
    assert (row["trials"], row["kept"], row["dropped"]) == (3, 1, 2)
    assert row["median gain"] == 1.0
    assert [one.get("decision") for one in result["rounds"]] == [None, "kept", "dropped", "dropped"]
    assert result["environment"] == PLACE


def test_six_steps_are_written_again_from_their_log(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    six_steps = module("six_steps")
    monkeypatch.setattr(six_steps, "ROOT", tmp_path)
    monkeypatch.setattr(six_steps, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(six_steps, "RESULTS", results / "six_steps.json")
    summary = {
        **{"num_train": 90, "num_val": 10, "num_test": 20, "global_batch_size": 16},
        **{"epochs": 3, "train_s": 6.0, "val_accuracy": 0.5, "test_accuracy": 0.5},
        "phases_s": {"forward": 4.0},
    }
    lines = [{"step": step, "size": 128, "summary": summary} for step in six_steps.NUMBERS]
    log = write_lines(tmp_path / "log.jsonl", lines)
    written(six_steps, monkeypatch, "--log", str(log))  # without the pictures none could be run
    result = read(results / "six_steps.json")
    assert [row["passes"] for row in result["rows"]] == [300] * 6
    assert result["rounds"] == lines
    assert (tmp_path / "page.md").read_text() == six_steps.page(result)


def test_advice_is_written_again_from_its_log(
    module: Import, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = module("advice")
    monkeypatch.setattr(advice, "in_own_process", refuse)
    row = {"workload": "text_batch_8", "advised": "larger_batch", "advised_was": "kept"}
    row |= {"climb_s": 2.0, "search_s": 2.0, "climb_over_search": 1.0, "n": 1}
    trainings = [{"end": end, "round": 0, "seconds": 2.0} for end in ("climb", "search")]
    line = {**row, "rounds": {"trainings": trainings, "verdicts": []}}
    log = write_lines(tmp_path / "log.jsonl", [{"environment": PLACE}, line])
    words = ["--workloads", row["workload"], "--log", str(log)]
    written(advice, monkeypatch, *words)
    result = read(results / "advice.json")
    assert result["rows"] == [row]
    assert result["rounds"] == [
        {"workload": row["workload"], "trainings": trainings, "verdicts": []}
    ]
    assert result["environment"] == PLACE

"""The story of a climb: an ordinary job, up the ladder, on the command line."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import pytest
from safetensors.torch import save_file

from stepladder.cli.main import main
from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.models.trunk import build_trunk
from stepladder.records import read_jsonl

pytestmark = pytest.mark.slow
BUDGET = "10min"  # never reached: what is tried must not depend on machine load
AS_WRITTEN = """
auto: false
data:
  store: store
model:
  name: test_efficientnet
  weights: trunk.safetensors
batch:
  global_batch_size: 2
schedule:
  max_epochs: 4
stopping:
  early: false
  restore_best: false
loader:
  threads: 0
device:
  threads: 1
ladder:
  min_gain: 1.0  # the features of a frozen trunk alone: several times as fast
  block_s: 0.05
  num_seeds: 2
"""
CLIMB = ("climb", "job.yaml", "--run.dir", "climbed", "--budget", BUDGET, "--run.checks", "off")


class Command(Protocol):
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]: ...

    def __call__(self, *words: str, code: int = 0) -> str: ...


def lines_of(run: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in read_jsonl(run / "trials.jsonl") if line["kind"] == kind]


@pytest.fixture(scope="module")
def stepladder(stepladder_in_store: Command, tmp_path_factory: pytest.TempPathFactory) -> Command:
    folder = tmp_path_factory.mktemp("climb")  # features are stored next to the store
    for name in ("groceries", "store"):
        shutil.copytree(stepladder_in_store.folder / name, folder / name)
    (folder / "job.yaml").write_text(AS_WRITTEN)
    trunk = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    save_file(build_trunk(trunk).model.state_dict(), folder / "trunk.safetensors")
    return type(stepladder_in_store)(folder)  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def interrupted(stepladder: Command) -> list[dict[str, Any]]:
    """Interrupt the climb after its first trial; return the trials that it kept."""
    run = stepladder.folder / "climbed"
    process = stepladder.start(*CLIMB)
    until = time.monotonic() + 200
    while not any(line["trial"]["before"] for line in lines_of(run, "trial")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "resumes from there" in err
    return [line for line in lines_of(run, "trial") if line["trial"]["before"]]


@pytest.fixture(scope="module")
def table(stepladder: Command, interrupted: list[dict[str, Any]]) -> str:
    assert interrupted
    return stepladder(*CLIMB)


@pytest.fixture
def run(stepladder: Command, table: str) -> Path:
    return stepladder.folder / "climbed"


def test_the_table_has_every_rung_and_both_ends(table: str) -> None:
    from stepladder.rungs import RUNGS

    assert " 0 original" in table
    _, _, not_here = " ".join(table.split()).partition("not here: ")
    for rung in RUNGS:
        assert f" {rung.level} {rung.name}" in table or rung.name in not_here
    assert "end to end" in table


def test_features_of_the_frozen_trunk_are_kept_and_the_job_is_faster(run: Path) -> None:
    verdicts = {line["trial"]["rung"]: line["trial"]["verdict"] for line in lines_of(run, "trial")}
    assert verdicts["cached_features"]["decision"] == "kept"
    climb = json.loads((run / "climb.json").read_text())
    assert climb["result"]["total_s"] < climb["baseline"]["total_s"]
    assert not climb["baseline"]["is_extrapolated"], "such a short job is run completely"
    assert climb["baseline"]["measured_epochs"] == climb["baseline"]["epochs"]
    assert climb["baseline"]["runs_s"]


def test_the_test_pictures_are_compared_picture_by_picture(run: Path) -> None:
    climb = json.loads((run / "climb.json").read_text())
    change = climb["test_change"]
    told = climb["result"]["test_accuracy"] - climb["baseline"]["test_accuracy"]
    assert change["estimate"] == pytest.approx(told, abs=1e-6)
    assert change["low"] <= change["estimate"] <= change["high"]


def test_each_prediction_was_written_before_its_trial(run: Path) -> None:
    predicted: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for line in read_jsonl(run / "trials.jsonl"):
        if line["kind"] == "prediction":
            predicted.append(line)
            assert line["prediction"]["provenance"] in ("modelled", "replayed")
        elif line["kind"] == "trial" and line["trial"]["before_s"]:
            trial = line["trial"]
            told = {key: trial[key] for key in ("rung", "recipe", "before_s", "after_s")}
            if told not in samples:  # otherwise the same trial, undone at the end
                own = {key: trial[key] for key in ("rung", "recipe", "prediction")}
                assert own in [{key: one[key] for key in own} for one in predicted]
                predicted = [one for one in predicted if one["rung"] != trial["rung"]]
                samples.append(told)
    assert samples


def test_the_run_is_trained_by_what_was_kept_and_serves(stepladder: Command, run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert "cached: true" in (run / "config.yaml").read_text()
    photo = next((stepladder.folder / "groceries").rglob("*.jpg"))
    assert photo.stem in stepladder("predict", "climbed", str(photo))


def test_the_report_shows_the_climb(run: Path) -> None:
    page = (run / "report.html").read_text()
    assert "cached_features" in page
    assert "Blocks of both were timed in turn after the climb" in page


def test_nothing_of_the_trials_is_left(run: Path) -> None:
    assert not list(run.glob(".ladder-*"))
    assert not list(run.parent.glob(".ladder-*"))


def test_the_same_command_again_has_nothing_to_do(stepladder: Command, run: Path) -> None:
    before = (run / "trials.jsonl").read_bytes()
    words = stepladder(*CLIMB)
    assert "already holds a finished climb" in words
    assert (run / "trials.jsonl").read_bytes() == before


def test_the_ledger_shows_predicted_next_to_measured(stepladder: Command, run: Path) -> None:
    words = stepladder("ledger", "climbed")
    assert "cached_features" in words


def test_an_interrupted_climb_keeps_its_verdicts_and_resumes(
    interrupted: list[dict[str, Any]], run: Path
) -> None:
    climb = json.loads((run / "climb.json").read_text())
    assert climb["num_from_ledger"] >= len(interrupted) > 0


def test_advice_names_one_thing_and_says_why_not_the_others(stepladder: Command) -> None:
    from stepladder.rungs import RUNGS

    words = stepladder("advise", "job.yaml", "--schedule.max-epochs", "2", "--budget", BUDGET)
    (advised,) = re.findall(r"^next: (\w+): predicted \d", words, re.MULTILINE)
    _, title, reasons = words.partition("\nwhy not the others:\n")
    assert title
    names = {rung.name for rung in RUNGS}
    told = re.findall(r"^ +\d+ (\w+):? +\S", reasons, re.MULTILINE)
    assert sorted(told) == sorted(names - {advised}), "each of the others once, with its reason"
    assert advised in names
    assert not (stepladder.folder / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["climb", "job.yaml", "--budget", "soon"], "is not a length of time"),
        (["climb", "job.yaml", "--train", "head_then_all"], "means two trainings"),
        (["climb", "nothing.yaml"], "nothing.yaml"),
        (["climb", "nothing.py:Task"], "the Task's file does not exist"),
        (["ledger", "store"], "this is not the folder of a climb"),
    ],
)
def test_mistakes_are_reported(
    stepladder: Command,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(stepladder.folder)
    assert main(words) in (2, 3)
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err

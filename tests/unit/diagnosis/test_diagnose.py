"""Diagnosis of a run: whatever is missing is named, and the rest is reported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stepladder
from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.diagnosis.fit.remedies import FOR_TRAINING, FOR_VALIDATION
from stepladder.diagnosis.runs.run_curves import curves_of_run, read_run
from stepladder.errors import DataError, UsageError
from stepladder.records import read_json, write_json
from stepladder.records.diagnosis import Confidence, Diagnosis, FitKind, LrVerdict
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.records.from_json import from_json
from stepladder.reporting.html import script

QUICK_S = 4.0  # too little for a learning curve, which is measured by default if there is time


def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


class Diagnosed(NamedTuple):
    """A diagnosis with enough time; the run's files before and after it."""

    run: Path
    found: Diagnosis
    before: dict[Path, bytes]
    after: dict[Path, bytes]


@pytest.fixture(scope="module")
def diagnosed(
    overfit_run: Path, task_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Diagnosed:
    """The overfitting run and its diagnosis, with the learning curve."""
    run = copied(overfit_run, tmp_path_factory.mktemp("diagnosed"))

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = files()
    found = stepladder.diagnose(run, task=f"{task_file}:Noisy")
    return Diagnosed(run, found, before, files())


def test_a_net_that_learns_wrong_labels_by_heart_overfits(
    overfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    found = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=QUICK_S)
    assert found.fit.kind is FitKind.OVERFIT
    assert found.fit.confidence is Confidence.SURE
    assert found.fit.numbers["is_equal"] is True
    assert found.fit.best_step is not None
    assert found.fit.best_step < 20 * 3
    names = [remedy.name for remedy in found.remedies]
    assert names[0] == "more_data"
    assert set(names) <= set(FOR_VALIDATION)
    assert found.range_test is None
    assert not found.could_not
    assert from_json(Diagnosis, read_json(run / "diagnosis.json")) == found
    page = (run / "diagnosis.html").read_text()
    assert "<h1>Overfitting, certain" in page
    assert "training, evaluated like validation" in page


@pytest.mark.thorough
def test_more_data_is_advised_with_its_number_where_that_is_quick(
    diagnosed: Diagnosed, overfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    quick = diagnosed.found
    assert quick.learning_curve is not None, quick.could_not
    assert "90 % interval" in quick.remedies[0].why
    run = copied(overfit_run, tmp_path)
    train_s = read_json(run / "summary.json")["train_s"]
    slow = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=6 * train_s)
    assert slow.learning_curve is None  # it would take all of the time, and half is the limit
    assert "--learning-curve" in slow.remedies[0].command


def test_a_model_that_is_too_small_underfits_and_is_tested_for_its_learning_rate(
    underfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    found = stepladder.diagnose(copied(underfit_run, tmp_path), task=f"{task_file}:Straight")
    assert found.fit.kind is FitKind.UNDERFIT
    assert found.num_norms == 0
    names = [remedy.name for remedy in found.remedies]
    assert {"larger_model", "add_normalisation"} <= set(names) <= set(FOR_TRAINING)
    assert found.range_test is not None
    assert len(found.range_test.lrs) == len(found.range_test.losses) > 20


def test_a_learning_rate_that_is_far_too_high_is_distinguished_from_underfit(
    train_run: Any, task_file: Path
) -> None:
    run = train_run("Rings", lr=3.0, epochs=12)
    found = stepladder.diagnose(run, task=f"{task_file}:Rings")
    assert found.fit.is_learning_rate_too_high
    assert found.range_test is not None
    assert found.range_test.verdict is LrVerdict.TOO_HIGH
    first = found.remedies[0]
    assert first.name == "learning_rate_lower"
    lower = first.options["batch.lr"]
    assert isinstance(lower, float)
    assert lower < 0.3
    assert f"--batch.lr {lower}" in first.command


def test_without_its_task_a_run_is_judged_by_what_was_logged(
    overfit_run: Path, tmp_path: Path
) -> None:
    found = stepladder.diagnose(copied(overfit_run, tmp_path))
    assert found.fit.kind is FitKind.OVERFIT
    assert found.fit.confidence is Confidence.LIKELY
    assert "as logged" in found.terms
    assert any("--task" in sentence and ":Noisy" in sentence for sentence in found.could_not)


def test_a_task_whose_file_is_gone_is_named(overfit_run: Path, tmp_path: Path) -> None:
    found = stepladder.diagnose(copied(overfit_run, tmp_path), task=f"{tmp_path}/gone.py:Noisy")
    assert found.fit.kind is FitKind.OVERFIT
    assert any("gone.py" in sentence for sentence in found.could_not)


def test_data_that_is_gone_is_named(overfit_run: Path, task_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    source = task_file.read_text().replace(
        "num = self.sizes.get(split, 0)", "raise FileNotFoundError('photos are gone')"
    )
    broken.write_text(source)
    found = stepladder.diagnose(copied(overfit_run, tmp_path), task=f"{broken}:Noisy")
    assert found.fit.kind is FitKind.OVERFIT
    assert any("photos are gone" in sentence for sentence in found.could_not)


def test_checkpoints_that_are_gone_are_named(
    overfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    shutil.rmtree(run / "checkpoints")
    found = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=QUICK_S)
    assert found.fit.kind is FitKind.OVERFIT
    assert any("this run has no checkpoint" in sentence for sentence in found.could_not)


def test_a_run_in_progress_is_diagnosed_so_far(overfit_run: Path, tmp_path: Path) -> None:
    run = copied(overfit_run, tmp_path)
    (run / "summary.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines()
    before = [line for line in lines if json.loads(line)["event"] != "stop"][:8]
    (run / "events.jsonl").write_text("\n".join(before) + '\n{"event": "valid')
    found = stepladder.diagnose(run, remeasure=False)
    assert found.status == "running"
    assert found.fit.kind is FitKind.NOT_YET_KNOWN
    assert any("summary.json" in sentence for sentence in found.could_not)


def test_one_validation_is_too_few(train_run: Any, task_file: Path) -> None:
    found = stepladder.diagnose(train_run("Rings", epochs=1), task=f"{task_file}:Rings")
    assert found.fit.kind in (FitKind.NOT_YET_KNOWN, FitKind.UNDERFIT)
    assert found.fit.confidence is Confidence.WEAK
    assert found.fit.kind is not FitKind.OVERFIT


def test_without_validation_overfit_is_not_checked(train_run: Any, task_file: Path) -> None:
    run = train_run("Untested", epochs=12)
    found = stepladder.diagnose(run, task=f"{task_file}:Untested", learning_curve=True)
    assert found.fit.kind is FitKind.NOT_YET_KNOWN
    assert "no validation" in found.fit.evidence[0]
    assert found.remedies == ()
    assert any("needs a validation split" in sentence for sentence in found.could_not)


def test_a_run_that_diverged_is_blamed_on_its_learning_rate(
    overfit_run: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    summary = read_json(run / "summary.json") | {"status": "diverged", "stop_reason": "diverged"}
    (run / "summary.json").write_text(json.dumps(summary))
    found = stepladder.diagnose(run, remeasure=False)
    assert found.status == "diverged"
    assert found.fit.kind is FitKind.NOT_YET_KNOWN
    assert found.fit.is_learning_rate_too_high
    assert next(remedy.name for remedy in found.remedies) == "learning_rate_lower"


def test_a_run_that_was_interrupted_did_not_come_to_its_end(
    overfit_run: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    assert not curves_of_run(read_run(run)).is_running
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    lines[-1] = {**lines[-1], "event": "stop", "reason": "signal"}
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert curves_of_run(read_run(run)).is_running


def test_a_loss_that_was_nan_at_step_0_asks_for_no_other_learning_rate(
    overfit_run: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    lines = (run / "events.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["event"] not in ("validation", "stop")]
    kept.append(json.dumps({"event": "diverged", "step": 0, "first_bad_step": 0}))
    (run / "events.jsonl").write_text("\n".join(kept) + "\n")
    found = stepladder.diagnose(run, remeasure=False)
    assert found.status == "diverged"
    assert not found.fit.is_learning_rate_too_high
    assert found.remedies == ()


def test_a_config_that_cannot_be_read_leaves_the_curves(overfit_run: Path, tmp_path: Path) -> None:
    run = copied(overfit_run, tmp_path)
    (run / "config.yaml").write_text("batch: [")
    found = stepladder.diagnose(run)
    assert found.fit.kind is FitKind.OVERFIT
    assert any("config.yaml" in sentence for sentence in found.could_not)


def test_report_and_diagnosis_name_one_best_epoch(overfit_run: Path, tmp_path: Path) -> None:
    run = copied(overfit_run, tmp_path)
    summary = read_json(run / "summary.json")
    found = stepladder.diagnose(run, remeasure=False)
    assert found.fit.best_epoch == summary["best_epoch"]
    assert found.fit.best_step == summary["best_step"]
    report = stepladder.Run(run).report().read_text()
    assert f"{summary['best_epoch']} of {summary['epochs']}" in report
    (run / "summary.json").unlink()
    without = stepladder.diagnose(run, remeasure=False)
    assert without.fit.best_step == summary["best_step"], "the events name the same one"
    report = stepladder.Run(run).report().read_text()
    assert f"<b>{summary['best_epoch']}</b>" in report or f">{summary['best_epoch']}<" in report


def test_the_errors_are_those_of_the_weights_that_are_saved(
    overfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    summary = read_json(run / "summary.json")
    kept = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=QUICK_S).fit
    assert kept.numbers["val_loss"] == pytest.approx(summary["val_loss"], rel=1e-4)
    assert f"of the saved weights, of epoch {summary['best_epoch']}" in " ".join(kept.evidence)
    (run / "summary.json").write_text(json.dumps(summary | {"restore_best": False}))
    last = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=QUICK_S).fit
    assert last.numbers["train_error"] < kept.numbers["train_error"], "it knows more wrong labels"
    assert last.numbers["val_loss"] > kept.numbers["val_loss"]


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is not the folder of a run"):
        stepladder.diagnose(tmp_path)
    (tmp_path / "events.jsonl").write_text('{"event": "sta')
    with pytest.raises(DataError, match="no event"):
        stepladder.diagnose(tmp_path)


def test_a_target_error_that_is_not_a_share_is_refused(overfit_run: Path) -> None:
    with pytest.raises(UsageError, match="is not an error rate"):
        stepladder.diagnose(overfit_run, target_error=25.0, remeasure=False)


def test_nothing_but_the_diagnosis_and_the_report_is_written(diagnosed: Diagnosed) -> None:
    run, _, before, after = diagnosed
    assert after.keys() - before.keys() == {run / "diagnosis.json", run / "diagnosis.html"}
    changed = {path for path, data in before.items() if after[path] != data}
    assert changed == {run / "report.html"}


def test_report_and_diagnosis_show_each_other(diagnosed: Diagnosed) -> None:
    run = diagnosed.run
    report, page = (run / "report.html").read_text(), (run / "diagnosis.html").read_text()
    assert "<h2>Diagnosis</h2>" in report
    assert '<a href="diagnosis.html">Diagnosis</a> <em>Overfitting' in report
    assert '<a href="report.html">Training</a>' in page


def test_the_page_has_the_alarms_of_the_checks(overfit_run: Path, tmp_path: Path) -> None:
    run = copied(overfit_run, tmp_path)
    failed = Finding(check="loss_sign", outcome=Outcome.FAILED, evidence="it rises", fix="Fix it.")
    passed = Finding(check="labels", outcome=Outcome.PASSED, evidence="from 0 to 1")
    report = CheckReport(tier="fast", key="k", findings=(passed, failed), took_s=1.0)
    write_json(run / "checks.json", report)
    stepladder.diagnose(run, remeasure=False)
    page = (run / "diagnosis.html").read_text()
    assert 'Loss sign</b> <code class="id">loss_sign</code>' in page
    assert "it rises" in page
    for name in ("diagnosis.html", "report.html"):
        assert "Fix what the check Loss sign found" in (run / name).read_text()
    write_json(run / "checks.json", replace(report, findings=(passed,)))
    stepladder.diagnose(run, remeasure=False)
    page = (run / "diagnosis.html").read_text()
    assert "1 of 1 checks passed." in page
    assert "Loss sign" not in page


def test_the_page_loads_nothing_and_escapes_what_it_shows(
    underfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(underfit_run, tmp_path / "<b>bold<b>"))
    stepladder.diagnose(run, task=f"{task_file}:Straight")
    page = (run / "diagnosis.html").read_text()
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert "Range test" in page
    assert not any(mark in page for mark in ("http:", "https:", "url("))
    assert page.count("<script") == page.count(f"<script>{script().text}</script>") == 1


@pytest.mark.parametrize("damage", ['{"status": "fin', "[]", "{}", '{"val_accuracy": "high"}'])
def test_a_damaged_summary_is_not_a_missing_one(
    overfit_run: Path, tmp_path: Path, damage: str
) -> None:
    run = copied(overfit_run, tmp_path)
    (run / "summary.json").write_text(damage)
    found = stepladder.diagnose(run, remeasure=False)
    (said,) = [sentence for sentence in found.could_not if "summary.json" in sentence]
    assert "summary.json is damaged" in said
    assert "stepladder verify" in said


def test_damaged_checkpoints_are_not_a_run_that_was_never_trained(
    overfit_run: Path, task_file: Path, tmp_path: Path
) -> None:
    run = copied(overfit_run, tmp_path)
    for file in run.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(b"x")
    found = stepladder.diagnose(run, task=f"{task_file}:Noisy", max_time_s=QUICK_S)
    (said,) = [
        sentence
        for sentence in found.could_not
        if "all checkpoints of this run are damaged" in sentence
    ]
    assert f"stepladder verify {run}" in said
    assert f"stepladder train {run}/config.yaml --overwrite --task {task_file}:Noisy" in said
    assert "Train first" not in said


@pytest.mark.parametrize("has_accuracy", [False, True])
def test_a_task_is_asked_for_before_the_first_checkpoint_names_it(
    overfit_run: Path, tmp_path: Path, *, has_accuracy: bool
) -> None:
    run = copied(overfit_run, tmp_path)
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for event in events if not has_accuracy else ():
        event.pop("val_accuracy", None)
    (run / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events[:-1]))
    found = stepladder.diagnose(run)
    said = " ".join(found.could_not)
    assert "--task FILE.py:NAME" in said
    assert "--data.store" not in said
    assert has_accuracy or "store" not in said


def test_events_that_are_a_folder_are_named(overfit_run: Path, tmp_path: Path) -> None:
    run = copied(overfit_run, tmp_path)
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    found = stepladder.diagnose(run, remeasure=False)
    assert found.status == "finished"
    assert any("events.jsonl cannot be read" in sentence for sentence in found.could_not)


def test_only_the_runs_own_evaluations_are_counted() -> None:
    points = [Point(step=idx, train_loss=1.0, val_loss=1.0, val_loss_sem=0.1) for idx in (1, 2)]
    points.append(Point(step=3, val_loss=0.9, val_loss_sem=0.1, is_remeasured=True))
    fit = judge_fit(Curves(points=tuple(points), num_val=100, is_running=True))
    assert any("2 evaluations show no trend" in sentence for sentence in fit.evidence)

"""Comparison of trainings: pairs of predictions, options, curves, third-party logs."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stepladder.diagnosis.audit.size import Sizes
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.diagnosis.runs.compare import compare, compare_pairs, with_samples
from stepladder.errors import ResourceError, UsageError
from stepladder.records import to_json, write_json
from stepladder.records.compare import Comparison
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.records.from_json import from_json
from stepladder.reporting.html import script
from stepladder.reporting.pages.compare_page import compare_page, compare_text, write_compare_page
from stepladder.reporting.pages.compare_verdict import verdict
from stepladder.stats.shares import mcnemar_p
from stepladder.training.setup.run_lock import LOCK_FILE, _ourselves

NAMES = ("first", "second")


def write_predictions(
    folder: Path, hits: Sequence[bool], *, split: str = "test", start: int = 0
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("split", "id", "path", "label", "predicted", "probability", "loss"))
        for idx, hit in enumerate(hits):
            predicted, loss = ("cat", 0.1) if hit else ("dog", 1.1)
            path = f"cat/{start + idx}.jpg"
            writer.writerow((split, idx, path, "cat", predicted, 0.9, loss))
    return folder


def write_run(
    folder: Path,
    hits: Sequence[bool],
    *,
    options: Mapping[str, str] | None = None,
    num_epochs: int = 5,
) -> Path:
    """Write the files of a run folder that a comparison reads."""
    write_predictions(folder, hits)
    lines = []
    for epoch in range(1, num_epochs + 1):
        place = {"step": 10 * epoch, "epoch": epoch, "attempt": 1, "elapsed_s": 2.0 * epoch}
        lines.append({"event": "train", **place, "train_loss": 2 / epoch, "learning_rate": 0.1})
        lines.append(
            {
                "event": "validation",
                **place,
                "val_loss": 1 + 1 / epoch,
                "val_loss_sem": 0.05,
                "val_accuracy": 0.5 + 0.05 * epoch,
            }
        )
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "test_accuracy": sum(hits) / len(hits),
        "num_test": len(hits),
        "num_val": 20,
        "num_train": 75,
        "global_batch_size": 8,
        "epochs": num_epochs,
        "train_s": 2.0 * num_epochs,
        "stop_reason": "max_epochs",
    }
    write_json(folder / "summary.json", summary)
    values = {"lr": "0.1", **(options or {})}
    text = "".join(f"  {key}: {value}\n" for key, value in values.items())
    (folder / "config.yaml").write_text(f"batch:\n{text}run:\n  dir: {folder}\n")
    return folder


def test_pairs_count_what_only_one_run_gets_right(tmp_path: Path) -> None:
    first = write_predictions(tmp_path / "a", [True] * 60 + [False] * 40)
    second = write_predictions(
        tmp_path / "b", [True] * 50 + [False] * 10 + [True] * 30 + [False] * 10
    )
    pair = compare_pairs(first, second, names=NAMES)
    assert (pair.split, pair.num, pair.num_left_out) == ("test", 100, 0)
    assert (pair.only_first, pair.only_second) == (10, 30)
    assert pair.p == mcnemar_p(10, 30)
    assert pair.accuracy is not None
    assert pair.accuracy.estimate == pytest.approx(0.2)
    assert pair.accuracy.low > 0
    assert pair.loss is not None
    assert pair.loss.estimate == pytest.approx(-0.2)
    assert pair.loss.high < 0


def test_only_examples_of_both_are_paired_and_the_others_counted(tmp_path: Path) -> None:
    first = write_predictions(tmp_path / "a", [True] * 10)
    second = write_predictions(tmp_path / "b", [False] * 10, start=4)
    pair = compare_pairs(first, second, names=NAMES)
    assert (pair.num, pair.num_left_out, pair.only_first) == (6, 8, 6)
    apart = compare_pairs(
        first, write_predictions(tmp_path / "c", [True] * 9, start=99), names=NAMES
    )
    assert "0 test examples in common" in apart.why_not


def test_without_predictions_or_a_common_split_there_are_no_pairs(tmp_path: Path) -> None:
    first = write_predictions(tmp_path / "a", [True] * 10)
    assert "second has no predictions.csv" in compare_pairs(first, None, names=NAMES).why_not
    second = write_predictions(tmp_path / "b", [True] * 10, split="val")
    assert "no split in common" in compare_pairs(first, second, names=NAMES).why_not


def test_runs_are_compared_with_the_first_by_table_options_and_pairs(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", [True] * 70 + [False] * 30)
    second = write_run(tmp_path / "second", [True] * 90 + [False] * 10, options={"lr": "0.01"})
    found = compare([str(first), str(second)])
    assert [run.accuracy for run in found.runs] == [0.7, 0.9]
    assert (found.runs[0].split, found.runs[0].num) == ("test", 100)
    assert [(option.key, option.values) for option in found.options] == [
        ("batch.lr", ("0.1", "0.01"))
    ]
    (pair,) = found.pairs
    assert (pair.only_first, pair.only_second) == (0, 20)
    text = compare_text(found)
    assert "70.0 % test (60.4 to 78.1)" in text  # Wilson at 70 of 100
    assert "batch.lr: 0.1 | 0.01" in text
    assert "significant" in text
    assert from_json(Comparison, to_json(found)).pairs == found.pairs


def test_a_log_of_another_tool_is_compared_with_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", [True] * 70 + [False] * 30)
    log = tmp_path / "other.csv"
    log.write_text("epoch,elapsed_s,val_loss,val_accuracy\n1,9,1.5,0.5\n2,18,1.2,0.75\n")
    found = compare([str(run), str(log)])
    assert "other has no predictions.csv" in found.pairs[0].why_not
    text = compare_text(found)
    assert "75.0 % val, best of 2" in text
    assert "val_accuracy 75.0 %" in text
    page = compare_page(found)
    assert "over epochs" in page  # the log does not count samples
    assert with_samples(read_logs(str(log))[0]) is None
    found = compare([str(run), str(log)], sizes=Sizes(num_train=75))
    assert "over samples seen" in compare_page(found)


def test_the_page_overlays_every_curve_and_loads_nothing(tmp_path: Path) -> None:
    folders = [
        str(write_run(tmp_path / name, [True] * 10 + [False] * 5, num_epochs=num))
        for name, num in (("a<b>", 5), ("c", 8))
    ]
    found = compare(folders)
    path = write_compare_page(found, tmp_path / "out" / "page.html")
    page = path.read_text(encoding="utf-8")
    charts = re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)
    assert len(charts) == 4
    assert page.count('<svg class="interval"') == 2  # an accuracy and its bounds for each
    for chart in charts:
        root = ElementTree.fromstring(chart)
        styles = {str(item.get("class")) for item in root.iter()}
        assert {"line run1", "line run2"} <= styles
    assert "a&lt;b&gt;" in page
    assert "a<b>" not in page
    assert page.count("<script") == page.count(f"<script>{script().text}</script>") == 1
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(
    ("num_right", "figure", "caption", "shown_as"),
    [
        (90, "+20.0 points", "second is better than first, on the same 100 test examples", "clear"),
        (50, "-20.0 points", "second is worse than first, on the same 100 test examples", "worse"),
        (71, "No significant difference", "second compared with first", "could_not_run"),
    ],
)
def test_the_hero_is_the_verdict(
    num_right: int, figure: str, caption: str, shown_as: str, tmp_path: Path
) -> None:
    hits = [[idx < num for idx in range(100)] for num in (70, num_right)]
    runs = [write_run(tmp_path / name, hit) for name, hit in zip(NAMES, hits, strict=True)]
    page = compare_page(compare([str(run) for run in runs]))
    assert f"<h1>{figure}</h1>" in page
    assert re.findall(r'class="caption">([^<]*)', page)[0].startswith(caption)
    assert f'<li class="{shown_as}">' in page


def test_the_verdict_on_several_runs_counts_those_that_differ(tmp_path: Path) -> None:
    runs = [
        str(write_run(tmp_path / name, [idx < num for idx in range(100)]))
        for name, num in (("first", 70), ("better", 90), ("alike", 71), ("worse", 50))
    ]
    assert verdict(compare(runs)) == (
        "1 of 3 better, 1 worse",
        "Compared with first: better +20.0 points (better), alike +1.0 points (not significant), "
        "worse -20.0 points (worse).",
    )
    assert verdict(compare([runs[0], runs[3], runs[2]]))[0] == "None of 2 better, 1 worse"


def test_a_verdict_from_logs_needs_the_number_of_examples(tmp_path: Path) -> None:
    logs = []
    for name, best in zip(NAMES, (0.5, 0.8), strict=True):
        logs.append(str(tmp_path / f"{name}.csv"))
        Path(logs[-1]).write_text(f"epoch,val_loss,val_accuracy\n1,2.0,0.4\n2,1.5,{best}\n")
    figure, caption = verdict(compare(logs))
    assert figure == "No verdict"
    assert caption.startswith("second cannot be compared with first: ")
    assert "--num-val" in compare_page(compare(logs))
    figure, caption = verdict(compare(logs, sizes=Sizes(num_val=1000)))
    assert figure == "+30.0 points"
    assert caption.startswith("second is better than first, according to the logs (95 %: +")


def test_a_lower_loss_is_better(tmp_path: Path) -> None:
    runs = [tmp_path / name for name in NAMES]
    for run, losses in zip(runs, ([2.0, 1.0], [1.5, 0.5]), strict=True):
        write_losses_run(run, losses, is_ended=True)
        rows = [f"val,{idx},{idx},,,,{losses[-1] + idx / 100}" for idx in range(40)]
        head = "split,id,path,label,predicted,probability,loss"
        (run / "predictions.csv").write_text("\n".join([head, *rows]) + "\n")
    figure, caption = verdict(compare([str(run) for run in runs]))
    assert figure == "Loss -0.5000"
    assert caption.startswith("second is better than first, on the same 40 validation examples")


def test_the_page_has_the_findings_of_each_run_and_links_to_its_report(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "runs" / name, [True] * 9, num_epochs=30) for name in NAMES]
    (runs[0] / "report.html").touch()
    failed = Finding(check="loss_sign", outcome=Outcome.FAILED, evidence="it rises", fix="Fix it.")
    report = CheckReport(tier="fast", key="k", findings=(failed,), took_s=1.0)
    write_json(runs[0] / "checks.json", report)
    found = compare([str(run) for run in runs])
    alarms = [finding for finding in found.runs[0].audited.findings if finding.is_alarm]
    assert alarms
    for place, address in (
        (tmp_path, "runs/first/report.html"),
        (tmp_path / "runs", "first/report.html"),
        (runs[1], "../first/report.html"),
    ):
        page = write_compare_page(found, place / "page.html").read_text()
        assert re.findall(r'<a href="([^"]*)">first</a>', page) == [address]
        assert page.count('<a href="') == 1  # the second run has no report
    far = write_compare_page(found, tmp_path / "a" / "b" / "page.html").read_text()
    assert "<a href" not in far
    for finding in alarms:
        assert finding.evidence[:30] in far
    assert re.search(r'Loss sign <code class="id">loss_sign</code> failed', far)


def events_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def write_events(run: Path, events: Sequence[Mapping[str, Any]]) -> Path:
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def write_losses_run(folder: Path, losses: Sequence[float], *, is_ended: bool) -> Path:
    """A run of a user's Task, without accuracy; an unfinished one has no summary."""
    run = write_run(folder, [True, False], num_epochs=len(losses))
    events = [{"event": "start", "attempt": 1, "elapsed_s": 0.0}, *events_of(run)]
    validations = (event for event in events if event["event"] == "validation")
    for event, loss in zip(validations, losses, strict=True):
        del event["val_accuracy"]
        event.update(val_loss=loss, val_losses=[loss] * 40, is_best=True)
    if is_ended:
        summary = {"val_loss": losses[-1], "num_val": 40, "are_pictures": False, "epochs": 2}
        write_json(run / "summary.json", summary)
        events.append({"event": "stop", "reason": "max_epochs", "elapsed_s": 9.0})
    else:
        (run / "summary.json").unlink()
        (run / "predictions.csv").unlink()
    (run / "config.yaml").write_text(f"batch:\n  lr: 0.1\ndata:\n  store: {folder}/store\n")
    return write_events(run, events)


def test_losses_are_judged_against_their_own_standard_errors(tmp_path: Path) -> None:
    first = write_losses_run(tmp_path / "first", [0.5, 0.2], is_ended=True)
    second = write_losses_run(tmp_path / "second", [0.5, 0.4], is_ended=False)
    found = compare([str(first), str(second)])
    (difference,) = found.differences
    assert difference.sem == pytest.approx(0.05 * 2**0.5)
    assert difference.is_clear is True
    assert "0.2 and 0.4 differ by 2.8 standard errors" in difference.words
    assert found.runs[1].audited.num_val == 40  # by its val_losses


def test_a_users_task_has_no_store(tmp_path: Path) -> None:
    runs = [
        str(write_losses_run(tmp_path / name, [0.5, 0.4], is_ended=is_ended))
        for name, is_ended in (("a", True), ("b", False))
    ]
    assert compare(runs).options == ()


def test_an_unfinished_run_is_reported_as_running_or_interrupted(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", [True, False])
    second = write_losses_run(tmp_path / "second", [0.5, 0.4], is_ended=False)
    assert "was interrupted" in compare_text(compare([str(first), str(second)]))
    write_json(second / LOCK_FILE, _ourselves())
    assert "still running" in compare_text(compare([str(first), str(second)]))
    write_json(second / LOCK_FILE, _ourselves() | {"pid": 2**22 + 1})
    assert "still running" not in compare_text(compare([str(first), str(second)]))


def test_the_accuracy_is_that_of_the_weights_that_a_run_ended_with(tmp_path: Path) -> None:
    first, second = (write_run(tmp_path / name, [True, False]) for name in ("first", "second"))
    events = events_of(first)
    validations = [event for event in events if event["event"] == "validation"]
    accuracies = (0.5, 0.9, 0.6, 0.7, 0.55)  # the best one is of weights with a higher loss
    for event, accuracy in zip(validations, accuracies, strict=True):
        event["val_accuracy"] = accuracy
        event["is_best"] = event["epoch"] <= 3
    write_events(first, events)
    summary = {"restore_best": True, "num_val": 20, "val_accuracy": 0.6, "val_loss": 1.5}
    write_json(first / "summary.json", summary)
    run = compare([str(first), str(second)]).runs[0]
    assert (run.accuracy, run.split, run.audited.best_epoch) == (0.6, "val", 3)
    write_json(first / "summary.json", {"restore_best": True, "num_val": 20})  # interrupted
    assert compare([str(first), str(second)]).runs[0].accuracy == 0.6
    write_json(first / "summary.json", {"restore_best": False, "num_val": 20})
    assert compare([str(first), str(second)]).runs[0].accuracy == 0.55
    write_events(first, [*events, {"event": "checkpoint", "step": 57, "elapsed_s": 11.0}])
    notes = compare([str(first), str(second)]).runs[0].audited.log.notes
    assert any("(step 57) were not validated" in note for note in notes)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("summary.json", '{"test_accuracy": 0.'),
        ("summary.json", "[]"),
        ("summary.json", '{"val_accuracy": "high"}'),
        ("config.yaml", ": : ["),
        ("config.yaml", "batch:\n  lr: 0.0"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, file: str, damage: str) -> None:
    first, second = (write_run(tmp_path / name, [True, False]) for name in ("first", "second"))
    (second / file).write_text(damage)
    found = compare([str(first), str(second)])
    assert f"second: {file} is damaged" in compare_text(found)
    assert compare_page(found).count(f"second: {file} is damaged") == 1


@pytest.mark.parametrize("damage", ["half", "header", "loss", "empty"])
def test_damaged_predictions_are_not_reported_as_missing(tmp_path: Path, damage: str) -> None:
    first = write_predictions(tmp_path / "a", [True] * 10)
    second = write_predictions(tmp_path / "b", [True] * 10)
    path = second / "predictions.csv"
    text = path.read_text()
    broken = {
        "half": text[:-5],
        "header": text.replace("split", "part", 1),
        "loss": text.replace("0.1", "low", 1),
        "empty": "",
    }
    path.write_text(broken[damage])
    why = compare_pairs(first, second, names=NAMES).why_not
    assert "predictions.csv of second is damaged" in why


def test_a_run_compared_with_itself_is_the_same_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [True, False])
    found = compare([str(run), f"{run}/../a"])
    assert found.pairs[0].why_not == "both are the same folder"
    assert found.differences == ()


def test_one_run_or_ten_are_refused(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "a", [True, False]))
    with pytest.raises(UsageError, match="these logs contain 1"):
        compare([run])
    with pytest.raises(UsageError, match="these logs contain 10"):
        compare([run] * 10)


def test_a_page_that_cannot_be_written_is_reported_with_what_to_type(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "a", [True, False]))
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be written") as caught:
        write_compare_page(compare([run, run]), tmp_path / "file" / "page.html")
    assert "--out" in str(caught.value.fix)

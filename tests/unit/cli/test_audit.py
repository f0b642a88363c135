"""`stepladder audit` and `compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepladder
from stepladder.cli.main import main

CSV = "epoch,loss,val_loss,val_accuracy\n1,2.0,1.9,0.5\n2,1.5,1.4,0.61\n3,1.2,1.1,0.7\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(CSV)
    return path


def test_an_audit_is_printed_as_text_and_as_json(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(log), "--num-val", "100"]) == 0
    text = capsys.readouterr().out
    assert "on 100 examples (the number that you passed)" in text
    assert main(["audit", str(log), "--num-val", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][0]["result"] == 0.7
    assert found["runs"][0]["num_val"] == 100


def test_out_keeps_the_audit(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = log.parent / "audit.json"
    assert main(["audit", str(log), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["runs"][0]["metric"] == "val_accuracy"
    assert capsys.readouterr().out


def test_the_page_is_written_and_named(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = log.with_name("audit.html")
    assert main(["audit", str(log), "--num-val", "100", "--page", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"page: {page}\n")
    assert "<h1>70.0 % ± 4.6</h1>" in page.read_text(encoding="utf-8")
    assert main(["audit", str(log), "--page", str(log / "audit.html")]) == 4
    assert "--page" in capsys.readouterr().err


def test_bad_input_has_an_exit_code_and_a_sentence(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit"]) == 2
    assert "no training log was given" in capsys.readouterr().err
    assert main(["audit", str(log.parent / "gone.csv")]) == 3
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["audit", str(log), "--num-val", "0"]) == 2
    assert "--num-val: 0 is not a number of examples" in capsys.readouterr().err
    assert main(["compare", str(log)]) == 2
    assert "needs 2 to 9 trainings, but these logs contain 1" in capsys.readouterr().err
    assert main(["compare", str(log), str(log.parent / "gone.csv")]) == 2
    said = capsys.readouterr().err
    assert "these logs contain 1, as far as they can be read" in said
    assert "gone.csv: the training log does not exist" in said


def test_a_text_that_is_not_a_log_is_refused_by_its_first_line(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = log.with_name("README.md")
    readme.write_text("# My project\n\nIt learns.\n\n## Use\n\nTrain it.\n")
    assert main(["audit", str(readme)]) == 3
    said = capsys.readouterr().err
    assert "begins with" in said
    assert "epoch,loss,val_loss" in said


def test_a_comparison_is_printed_and_its_page_written(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, page = log.with_name("other.csv"), log.with_name("page.html")
    other.write_text(CSV.replace("0.7\n", "0.75\n"))
    assert main(["compare", str(log), str(other), "--out", str(page), "--num-val", "100"]) == 0
    text = capsys.readouterr().out
    assert "differ by 5 examples of 100" in text
    assert f"page: {page}" in text
    assert page.read_text().startswith("<!doctype html>")


def test_both_are_functions_of_the_package(log: Path) -> None:
    assert stepladder.audit(log, num_val=100).runs[0].result == 0.7
    assert len(stepladder.compare(log, log).runs) == 2


def test_a_log_that_cannot_be_read_is_reported_and_ends_with_3(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, page = str(log.parent / "gone.csv"), str(log.parent / "page.html")
    assert main(["audit", str(log), gone]) == 3
    said = capsys.readouterr().out
    assert "70.0 %" in said
    assert "Not read\n" in said
    assert main(["audit", str(log), gone, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unreadable"]
    assert main(["compare", str(log), str(log), gone, "--out", page]) == 3
    assert main(["compare", str(log), str(log), "--out", page]) == 0


def test_a_file_of_a_run_and_a_folder_of_runs_are_answered_with_the_run(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(log.parent)
    runs = [Path("runs", name) for name in ("a", "b", "c", "d", "e")]
    for run in runs:
        run.mkdir(parents=True)
        (run / "events.jsonl").write_text(
            '{"event": "validation", "epoch": 1, "step": 9, "val_loss": 1.0}\n'
        )
        (run / "summary.json").write_text("{}")
    assert main(["audit", "runs/a/summary.json"]) == 3
    said = capsys.readouterr().err
    assert "this file belongs to the run runs/a" in said
    assert "Did you mean runs/a?" in said
    assert main(["audit", "runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["log"]["name"] for run in found["runs"]] == ["a", "b", "c", "d", "e"]
    asked = "Did you mean one of runs/a, runs/b, runs/c, runs/d …?"
    assert main(["compare", "runs", "runs/a"]) == 2
    assert "5 of its folders do" in capsys.readouterr().err
    for command in ("diagnose", "report"):
        assert main([command, "runs/a/summary.json"]) == 3
        said = capsys.readouterr().err
        assert "this is a file" in said
        assert "Use the run folder runs/a" in said
        assert main([command, "runs"]) == 3
        assert asked in capsys.readouterr().err
        assert main([command, "log.csv"]) == 3
        assert "this is a file, not the folder of a run" in capsys.readouterr().err
    assert main(["audit", "runs/a"]) == 0


def test_a_folder_without_a_report_names_what_a_killed_watch_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "watch-a").mkdir()
    assert main(["report", str(tmp_path / "watch-a")]) == 3
    said = capsys.readouterr().err
    assert "`climb` or `watch`" in said
    assert "killed in its first seconds writes no report" in said
    (tmp_path / "watch-a" / "watch.json").write_text("{}")
    (tmp_path / "watch-a" / "watch.html").touch()
    assert main(["report", str(tmp_path / "watch-a" / "watch.html")]) == 3
    assert f"Use the run folder {tmp_path / 'watch-a'}" in capsys.readouterr().err

"""No command overwrites its input, a file of a run, or a file that is not its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import stepladder
from stepladder.api.targets import FACTS, MODEL, PAGE, refuse_to_replace
from stepladder.cli.main import main
from stepladder.errors import UsageError
from stepladder.records.run_files import RUN_FILES

CSV = "epoch,loss,val_loss,val_accuracy\n1,2.0,1.9,0.5\n2,1.5,1.4,0.61\n3,1.2,1.1,0.7\n"
EVENTS = '{"event": "validation", "epoch": 1, "step": 9, "val_loss": 1.0, "val_accuracy": 0.5}\n'
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder with two logs, a run, and the user's own file and page."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    files = {
        "log.csv": CSV,
        "other.csv": CSV,
        "notes.md": "# Notes\n",
        "own.html": "<title>Mine</title>\n",
        "own.json": '{"runs": 3}\n',
        "runs/first/events.jsonl": EVENTS,
        "runs/first/summary.json": "{}\n",
        "runs/first/checks.json": "{}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "twin.csv").hardlink_to(tmp_path / "log.csv")
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        "audit log.csv --page log.csv",
        "audit log.csv --page ./runs/../log.csv",
        "audit log.csv --page twin.csv",
        "audit log.csv --page own.html",
        "audit log.csv --page runs",
        "audit log.csv --page /dev/null",
        "audit log.csv --out log.csv",
        "audit log.csv --out own.json",
        "audit log.csv --out notes.md --page new.html",
        "audit log.csv --page new --out new",
        "audit runs/first --out runs/first/summary.json",
        "audit runs/first --out runs/first/env.json",
        "audit runs/first --page runs/first/events.jsonl",
        "compare log.csv runs/first --out runs/first/events.jsonl",
        "compare log.csv other.csv --out other.csv",
        "compare log.csv other.csv --out notes.md",
    ],
)
def test_what_is_read_or_not_ours_is_left_alone(
    work: Path, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(work)
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert "Choose another file: --" in said.err
    assert not said.out
    assert tree(work) == before
    assert Path("/dev/null").is_char_device()


def test_an_earlier_page_and_audit_of_ours_are_replaced(work: Path) -> None:
    (work / "empty.html").touch()
    for _ in range(2):
        words = ["--num-val", "100", "--page", "empty.html", "--out", "audit.json"]
        assert main(["audit", "log.csv", *words]) == 0
        assert main(["compare", "log.csv", "other.csv"]) == 0
    assert main(["compare", "log.csv", "other.csv", "--out", "empty.html"]) == 0
    assert "stepladder compare</title>" in (work / "empty.html").read_text(encoding="utf-8")
    assert main(["audit", "audit.json", "--out", "audit.json"]) == 2
    with pytest.raises(UsageError, match="would overwrite a file that this command reads"):
        stepladder.audit("log.csv", out="log.csv")


def test_missing_folders_are_made(work: Path) -> None:
    assert main(["audit", "log.csv", "--page", "no/dir/a.html", "--out", "no2/x.json"]) == 0
    assert json.loads((work / "no2" / "x.json").read_text())["runs"]
    assert (work / "no" / "dir" / "a.html").is_file()


def test_a_file_that_cannot_be_written_is_reported(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "log.csv", "--out", str(work / "notes.md" / "x.json")]) == 4
    assert "Choose another file: --out FILE.json" in capsys.readouterr().err
    assert main(["audit", "log.csv", "--out", "x" * 300]) == 4
    assert "unexpected" not in capsys.readouterr().err


def test_a_model_replaces_models_only(work: Path) -> None:
    model = work / "model.pt2"
    model.write_bytes(b"PK...")
    with pytest.raises(UsageError, match="not a model written by stepladder"):
        refuse_to_replace(model, MODEL, option="--out")
    model.with_suffix(".json").write_text('{"input": 1, "output": 1, "stepladder": "0"}')
    refuse_to_replace(model, MODEL, option="--out")
    refuse_to_replace(model.with_suffix(".json"), FACTS, option="--out", inputs=[model])
    for name in ("summary.onnx", "events.jsonl", "new.json"):
        before = tree(work)
        with pytest.raises(UsageError):
            stepladder.export(work / "runs" / "first", "torch", work / "runs" / "first" / name)
        assert tree(work) == before


def test_every_page_of_ours_is_known_by_its_title() -> None:
    templates = (DOCS.parent / "src" / "stepladder" / "reporting" / "templates").glob("*.html")
    read = [path.read_text(encoding="utf-8") for path in templates]
    texts = [text for text in read if '{% extends "page.html" %}' in text]
    assert len(texts) == 11
    for text in texts:
        title = text.partition("{% block title %}")[2].partition("{% endblock %}")[0]
        assert re.search(r" · stepladder [a-z]+$", title)
    assert PAGE.words == "page"


def test_files_of_a_run_are_those_of_the_docs() -> None:
    lines = (DOCS / "run-folder.md").read_text(encoding="utf-8").partition("## ")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    named = {name.strip(" `") for cell in cells for name in cell.split(",")}
    assert {name for name in named if not name.endswith(("/", ".html"))} == RUN_FILES

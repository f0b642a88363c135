"""Commands and code of README and the tutorials run as they are printed, in their order."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli.commands import COMMANDS
from stepladder.cli.main import main
from stepladder.cli.parse import parse

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What makes a command short enough for a test, without changing what it does
SHORTER = {
    "climb": (
        *("--budget", "5s", "--ladder.block-s", "0.02", "--ladder.num-seeds", "2"),
        *("--device.threads", "1"),
    ),
    "advise": ("--ladder.block-s", "0.02", "--device.threads", "1"),
    "train": ("--device.threads", "1"),
    "check": ("--device.threads", "1"),
    "prepare": ("--size", "32"),
}
CHECK_OF_PICTURES = ("--budget", "5s")  # tests/story/test_check_story.py runs every check on them
CHECKED = (0, 6, 8)  # 6: a check fails on so few pictures; 8: there was no time for all
SCRIPT = """
import argparse, torch
argparse.ArgumentParser().add_argument("--epochs")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
LOG = "epoch,train_loss,val_loss,val_acc\n0,1.0,1.1,0.5\n1,0.7,0.9,0.6\n2,0.5,0.8,0.7\n"


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCE.findall(page.read_text("utf-8")) if name == language]


def commands(page: Path, *languages: str) -> Iterator[list[str]]:
    """Yield the words of each command of ours in a page's blocks."""
    for language in languages:
        for block in blocks(page, language):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("stepladder "):
                    yield shlex.split(line, comments=True)[1:]


@pytest.fixture
def folder(
    train_photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A folder with what the pages take for granted: photographs, a script and a log."""
    shutil.copytree(train_photographs, tmp_path / "photos")
    classes = sorted((tmp_path / "photos").iterdir())
    for place, name in zip(classes, ("apple", "bread", "corn"), strict=False):
        place.rename(place.with_name(name))
    shutil.copytree(tmp_path / "photos" / "apple", tmp_path / "new_photos")
    (tmp_path / "train.py").write_text(SCRIPT)
    for log in ("lightning_logs/metrics.csv", "lightning_logs/version_0/metrics.csv"):
        (tmp_path / log).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / log).write_text(LOG)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    before = sys.modules["__main__"], list(sys.argv), list(sys.path)
    yield tmp_path
    sys.modules["__main__"], sys.argv[:], sys.path[:] = before


def test_the_five_commands_for_own_photographs_need_nothing_but_a_folder_of_them() -> None:
    """`run_as_printed` runs them, in a folder without a job file."""
    text = (ROOT / "README.md").read_text("utf-8")
    (section,) = re.findall(r"^## Your own photographs\n(.*?)^## ", text, re.M | re.S)
    (block,) = (code for name, code in FENCE.findall(section) if name == "bash")
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [words[1] for words in lines] == ["train", "init", "climb", "diagnose", "predict"]
    assert lines[0][2:] == ["photos"]


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def run_as_printed(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in blocks(page, "python"):
        if "(Task):" in text:
            (folder / "my_job.py").write_text(text)
    printed = list(commands(page, "bash"))
    assert printed
    for text in blocks(page, "yaml"):
        if ["init"] not in printed:  # else it writes the file
            (folder / "job.yaml").write_text(text)
    for command, *words in printed:
        more = () if "--size" in words else SHORTER.get(command, ())
        if command == "check" and not any(word.startswith("my_job.py:") for word in words):
            more += CHECK_OF_PICTURES
        code = main([command, *words, *more])
        assert code in (CHECKED if command == "check" else (0,)), (words, capsys.readouterr())
        if command == "init" and blocks(page, "yaml"):
            assert [(folder / "job.yaml").read_text()] == blocks(page, "yaml")


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/install.md",
        pytest.param("docs/tutorial-photographs.md", marks=pytest.mark.thorough),
        pytest.param("docs/tutorial-task.md", marks=pytest.mark.thorough),
        "docs/tutorial-script.md",
    ],
)
def test_its_commands_run_as_they_are_printed(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_as_printed(ROOT / name, folder, capsys)


def test_the_model_of_the_tutorial_of_a_task_is_used_as_it_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "tutorial-task.md"
    task, metrics, use = blocks(page, "python")
    task = task.replace("Batch, Recipe", "Batch, Metrics, Recipe")
    (folder / "my_job.py").write_text(task + textwrap.indent("\n" + metrics, "    "))
    (train,) = (words for words in commands(page, "bash") if words[0] == "train")
    assert main([*train, "--device.threads", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^validation after epoch 5: loss .*, mae 0\.\d+", out, re.MULTILINE)
    assert re.search(r"^test loss .*, mae 0\.\d+ \(400 examples\)$", out, re.MULTILINE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_job", raising=False)
    names: dict[str, Any] = {}
    exec(compile(use, str(page), "exec"), names)
    assert float(names["prediction"]) == pytest.approx(2.5, abs=0.2)


def test_the_loader_of_the_page_on_data_reads_a_store(stepladder_in_store: Any) -> None:
    (code,) = (text for text in blocks(ROOT / "docs" / "data.md", "python") if "Loader" in text)
    names: dict[str, Any] = {}
    with contextlib.chdir(stepladder_in_store.folder):
        exec(compile(code.replace("batch_size=64", "batch_size=16"), "docs/data.md", "exec"), names)
    assert names["images"].shape[1:] == (3, 96, 96)
    assert names["state"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_python_is_python(page: Path) -> None:
    for text in blocks(page, "python"):
        ast.parse(text)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "commands.md"],  # tests/laws/test_commands.py has it
    ids=lambda page: page.name,
)
def test_its_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modules = {command.name: command.module for command in COMMANDS}
    for command, *given in commands(page, "", "text", "bash"):
        assert command in modules
        if command != "watch":  # what follows its script is the script's own
            alias = "--from" if command == "plan" else "--source"  # of prepare
            words = [alias if word == "--from" else word for word in given]
            if command == "scaling":  # takes a list, too
                words = [word.rpartition(",")[2] for word in words]
            flags = importlib.import_module(modules[command]).Flags
            assert parse(flags, words, command=command), words

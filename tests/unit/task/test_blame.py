"""A Task that returns nothing or exits: the error names it with file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepladder.cli.main import main
from stepladder.errors import UsageError
from stepladder.task.blame import exits_told, method_place
from stepladder.task.contract import Task
from stepladder.task.load import load_task

TASK = """import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

class Mine(Task):
    def __init__(self):
        self.size = 32

    def build_model(self, recipe):
        return nn.Linear(4, 2)

    def data(self, split):
        return TensorDataset(torch.randn(self.size, 4), torch.arange(self.size) % 2)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""


def broken(method: str, line: str) -> tuple[str, int]:
    """Return a Task in which a method starts with a line, and the number of the method's line."""
    text = re.sub(rf"(    def {method}\(.*\n)", rf"\g<1>        {line}\n", TASK)
    number = next(i for i, code in enumerate(text.splitlines(), 1) if f"def {method}(" in code)
    return text, number


def rehearse(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(text)
    return main(["train", "mine.py:Mine", "--dry-run", "--train", "all", "--run.dir", "run"])


@pytest.mark.parametrize(
    ("method", "line", "code", "told"),
    [
        (
            "build_model",
            "return None",
            2,
            "build_model of Mine returned NoneType, not a torch.nn.Mod",
        ),
        (
            "build_model",
            "return nn.Linear",
            2,
            "build_model of Mine returned type, not a torch.nn.Mod",
        ),
        ("data", "return None", 3, "data(Split.TRAIN) of Mine returned None"),
        ("data", "self.size = 0", 3, "data(Split.TRAIN) of Mine returned no example"),
    ],
)
def test_a_method_that_gives_nothing_is_named(
    method: str,
    line: str,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, number = broken(method, line)
    assert rehearse(tmp_path, text, monkeypatch) == code
    message = capsys.readouterr().err
    assert f"mine.py:{number}: " in message
    assert told in message
    assert "pictures" not in message


@pytest.mark.parametrize("method", ["__init__", "build_model", "data"])
def test_a_task_that_ends_the_program_is_an_error(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, number = broken(method, "sys.exit(3)")
    assert rehearse(tmp_path, text, monkeypatch) == 2
    assert f"mine.py:{number + 1}: Mine calls sys.exit(3) in {method}" in capsys.readouterr().err


def test_a_loss_that_ends_the_program_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, number = broken("loss", "sys.exit(3)")
    assert rehearse(tmp_path, text, monkeypatch) == 2
    assert f"mine.py:{number + 1}: " in (said := capsys.readouterr().err)
    assert "sys.exit(3) in loss" in said


def test_a_file_that_ends_the_program_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{TASK}\nsys.exit()\n")
    with pytest.raises(UsageError, match=r"the Task's file calls sys\.exit\(\)") as caught:
        load_task(f"{file}:Mine", store=tmp_path)
    assert caught.value.where == f"{file}:{len(TASK.splitlines()) + 2}"
    assert "__main__" in str(caught.value)


class Ends(Task):
    """A Task created in Python."""

    def build_model(self, recipe: object) -> None:  # type: ignore[override]
        raise SystemExit("no")

    def data(self, split: object) -> None:
        """Return nothing."""

    def loss(self, model: object, batch: object) -> None:  # type: ignore[override]
        """Return nothing."""


def test_a_task_made_in_python_is_named_with_its_line() -> None:
    line = next(
        i for i, code in enumerate(Path(__file__).read_text().splitlines(), 1) if '("no")' in code
    )
    with (
        pytest.raises(UsageError, match=r"Ends calls sys\.exit\('no'\) in build_model") as caught,
        exits_told(Ends()),
    ):
        Ends().build_model(None)
    assert str(caught.value.where).endswith(f"test_blame.py:{line}")
    assert method_place(Ends(), "build_model").endswith(f"test_blame.py:{line - 1}")
    assert method_place(Ends(), "no_such") == "Ends"

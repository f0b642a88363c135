"""A Task's file that imports a torchvision that does not fit torch: a warning says what to type."""

from __future__ import annotations

import sys
import types
import warnings
from pathlib import Path

import pytest

from stepladder.errors import UsageError
from stepladder.task import load
from stepladder.task.load import load_task

TASK = """
{}
from stepladder import Task

class Own(Task):
    def build_model(self, recipe): ...
    def data(self, split): ...
    def loss(self, model, batch): ...
"""
IMPORTS = "import torchvision"
FAILS = "raise RuntimeError('operator torchvision::nms does not exist')"
PROBLEM = "torchvision 0.1 does not fit torch 2.13.0: type this"


@pytest.fixture(autouse=True)
def problem(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(load, "new_torchvision_problem", lambda: PROBLEM)


def own(folder: Path, line: str) -> str:
    (folder / "own.py").write_text(TASK.format(line))
    return f"{folder / 'own.py'}:Own"


def test_it_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    with pytest.warns(UserWarning, match="does not fit torch 2.13.0: type this"):
        load_task(own(tmp_path, IMPORTS), store=tmp_path)


def test_it_is_warned_of_where_the_import_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = "torchvision.extension"  # stays when the import fails
    monkeypatch.setitem(sys.modules, half, types.ModuleType(half))
    with (
        pytest.warns(UserWarning, match="does not fit torch 2.13.0: type this"),
        pytest.raises(UsageError, match="nms does not exist"),
    ):
        load_task(own(tmp_path, FAILS), store=tmp_path)


def test_a_task_without_torchvision_is_not_bothered(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_task(own(tmp_path, ""), store=tmp_path)

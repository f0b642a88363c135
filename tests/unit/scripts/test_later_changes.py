"""Lines that change a dataset after a loader of it was made."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepladder.records.script import Place
from stepladder.scripts.inside.later_changes import later_change, names_of
from stepladder.watching.script.own_code import OwnCode

SCRIPT = """
import argparse, random, types, torch, other_of_changes as other
from torch.utils.data import DataLoader, Dataset, Subset

SIZE = 4
TABLE = {"low": 1}


class Crop:
    def __init__(self, width):
        self.width = width

    def __call__(self, x):
        return x[: self.width]

    def widen(self):
        self.width += 1


def scaled(x):
    return x * TABLE["low"]


class Data(Dataset):
    def __init__(self):
        self.files = [float(i) for i in range(40)]
        self.epoch = types.SimpleNamespace(value=0)
        self.size, self.unused, self.data = 4, 0, []
        self.crop = Crop(4)
        self.args, self.labels, self.rows, self.table = args, labels, rows, table
        self.set_epoch(0)

    def __len__(self):
        return 40

    def set_epoch(self, epoch):
        self.size = 4 + epoch

    def begin(self, epoch):
        self.set_epoch(epoch)

    def train(self):
        self.files.append(0.0)

    def __getitem__(self, i):
        self.last = i
        x = [self.files[i]] * (1 + self.epoch.value) + self.data
        self.args.number + self.labels[0] + self.rows[0] + self.table.value
        return scaled(self.crop(x)[: self.size][: SIZE * other.size])


class Trainer:
    def __init__(self, data):
        self.data, self.size = data, 1

    def run(self):
        self.size = 2
        OF_TRAINER


args = argparse.Namespace(size=8, number=3)
options = argparse.Namespace(size=8)
labels, rows, table = [1, 2], torch.zeros(3), types.SimpleNamespace(value=3)
model = types.SimpleNamespace(data=0, train=lambda: 0)
data = Data()
crop = data.crop
EARLIER
loader = DataLoader(Subset(data, range(8)))
for epoch in range(2):
    LATER
"""


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what is found with lines in some places of the script."""

    def found(later: str = "pass", *, of_trainer: str = "pass", earlier: str = "pass") -> bool:
        lines = {"LATER": later, "OF_TRAINER": of_trainer, "EARLIER": earlier}
        text = SCRIPT
        for name, line in lines.items():
            before = next(one for one in SCRIPT.splitlines() if one.strip() == name)
            indent = before[: -len(name)]
            text = text.replace(before, textwrap.indent(line, indent))
        file = tmp_path / "script_of_changes.py"
        file.write_text(text)
        linecache.checkcache()
        head, _, tail = text.partition("loader = ")
        scope: dict[str, Any] = {"__name__": "script_of_changes"}
        (tmp_path / "other_of_changes.py").write_text("size = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules["script_of_changes"] = SimpleNamespace(__file__=str(file))  # type: ignore[assignment]
        exec(compile(head, str(file), "exec"), scope)
        scope["loader"] = eval(tail.partition("\n")[0], scope)
        own = OwnCode(tmp_path)
        own.is_own(str(file))
        line = head.count("\n") + 1
        place = Place(
            file=str(file), line=line, column=9, end_line=line, end_column=50, is_direct=True
        )
        frame: Any = SimpleNamespace(f_globals=scope, f_locals=scope)
        dataset = scope["loader"].dataset
        where = later_change(dataset, names_of(dataset, frame), own, place)
        if where is not None:
            shown = text.splitlines()[int(where.rpartition(":")[2]) - 1].strip()
            assert shown in (later + of_trainer + earlier)
        return where is not None

    yield found
    for name in ("script_of_changes", "other_of_changes"):
        sys.modules.pop(name, None)


CHANGES = [
    "data.size = epoch",
    "data.size += 1",
    "data.size, other = 1, 2",
    "del data.size",
    "setattr(data, 'size', 8)",
    "vars(data)['size'] = 8",
    "data.__dict__.update(size=3)",
    "data.data = [epoch]",
    "data.epoch.value = epoch",
    "data.crop.width = 8",
    "crop.width = 8",
    "crop.widen()",
    "data.files[3] = 7.0",
    "data.files.append(4.0)",
    "random.shuffle(data.files)",
    "data.set_epoch(epoch)",
    "data.begin(epoch)",
    "data.train()",
    "loader.dataset.dataset.set_epoch(epoch)",
    "loader.dataset.dataset.crop.width = 8",
    "Data.size = 8",
    "trainer.train_set.size = 8",
    "trainer.train_set.set_epoch(3)",
    "held = loader.dataset.dataset; held.size = 3",
    "for held in (data,): held.size = 8",
    "def enlarge(held): held.size = 8",
    "for data.size in (4, 8): pass",
    "SIZE = 8",
    "def enlarge():\n    global SIZE\n    SIZE = 8",
    "args.number = 4",
    "args.size = 8",
    "labels[0] = 3",
    "labels += [3]",
    "random.shuffle(labels)",
    "rows.fill_(1)",
    "rows += 1",
    "rows[0] = 1",
    "data.rows.fill_(1)",
    "table.drop(inplace=True)",
    "data.table.drop(inplace=True)",
    "other.size = 2",
    "def step():\n    rows.add_(1)",
    "TABLE['low'] = epoch",
    "TABLE.update(low=3)",
]


@pytest.mark.parametrize("line", CHANGES)
def test_a_change_is_found(change: Any, line: str) -> None:
    assert change(line)


@pytest.mark.parametrize("line", ["self.data.size = 3", "self.data.set_epoch(3)", "data.size = 3"])
def test_a_change_by_another_object_is_found(change: Any, line: str) -> None:
    assert change(of_trainer=line)


NO_CHANGES = [
    "data.unused = epoch",
    "data.last = epoch",
    "options.size = 8",
    "for rows in loader: rows.add_(1)",
    "labels = [3]; labels.append(1)",
    "def step(rows):\n    rows.add_(1)",
    "model.data = 3",
    "model.train()",
    "parameter.data = 3",
    "net.train()",
    "size = data.size",
    "files = sorted(data.files)",
    "losses = []; losses.append(data.size)",
    "epoch = 3",
    "def enlarge():\n    SIZE = 8",
]


@pytest.mark.parametrize("line", NO_CHANGES)
def test_other_lines_change_nothing(change: Any, line: str) -> None:
    assert not change(line)


@pytest.mark.parametrize("line", ["data.size = 8", "SIZE = 5", "random.shuffle(data.files)"])
def test_what_is_done_before_the_loader_is_made_changes_nothing(change: Any, line: str) -> None:
    assert not change(earlier=line)
    assert not change(of_trainer="self.size = 3")

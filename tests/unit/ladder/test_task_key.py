"""A Task of one's own: what tells it from another of the same class and file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.ladder.keys import loose_code, task_facts
from stepladder.task import Task
from stepladder.task.image_classification import ImageClassification

Cells = Callable[..., Any]
NOTEBOOK = """
import torch
from torch import nn
from stepladder.task import Task

WIDTH = 8
WEIGHTS = [1.0, 5.0]
seed = 0

def scaled(x, kinds={"a", "b", "c"}):
    return x * 2

twice = lambda x: x + x
thrice = lambda x: x + x + x

class Net(nn.Module):
    slope = 0.1

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, WIDTH)

    def forward(self, x):
        return nn.functional.leaky_relu(self.layer(scaled(x)), self.slope)

class Digits(Task):
    def build_model(self, recipe):
        torch.manual_seed(recipe.seed)
        return Net()

    def data(self, split):
        return None

    @torch.no_grad()
    def metrics(self, model, batch):
        return twice(thrice(batch)), WEIGHTS[0]

    @property
    def width(self):
        return 7

    def loss(self, model, batch):
        return [value for value in (model(batch.inputs),) if value in {"a", "b", "c"}]

def not_called(x):
    return x - 1
"""


@pytest.fixture(name="cells")
def _cells() -> Iterator[Cells]:
    """Run cells of a notebook: code of a module that is no file."""
    name = "a_notebook"

    def run(text: str) -> Any:
        module = ModuleType(name)
        sys.modules[name] = module
        exec(compile(text, "<cell>", "exec"), module.__dict__)
        return module

    yield run
    del sys.modules[name]


class Wide(Task):
    """A model as wide as it is told."""

    def __init__(
        self,
        width: int = 8,
        *,
        drop: float = 0.0,
        weights: object = None,
        store: Path | None = None,
    ) -> None:
        self.width, self.drop, self.weights, self.store = width, drop, weights, store
        self.num_built = 0

    def build_model(self, recipe: Recipe) -> nn.Module:
        self.num_built += 1
        return nn.Sequential(nn.Linear(2, self.width), nn.Dropout(self.drop))

    def data(self, split: object) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.inputs).sum(dim=1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 2", "x * 3"),
        ("WIDTH = 8", "WIDTH = 9"),
        ("slope = 0.1", "slope = 0.2"),
        ("leaky_relu", "celu"),
        ("return Net()", "return Net().double()"),
        ("WEIGHTS[0]", "WEIGHTS[1]"),
        ("[1.0, 5.0]", "[1.0, 6.0]"),
        ("x + x\n", "x - x\n"),
        ("x + x + x", "x + x - x"),
        ("return 7", "return 8"),
        ('{"a", "b", "c"}):\n    return', '{"a", "b"}):\n    return'),
    ],
    ids=[
        "a function",
        "a constant",
        "of the class",
        "a call",
        "of the task",
        "decorated",
        "a list",
        "a lambda",
        "another lambda",
        "a property",
        "a default",
    ],
)
def test_another_cell_of_a_notebook_is_another_job(cells: Cells, old: str, new: str) -> None:
    assert old in NOTEBOOK
    before = task_facts(cells(NOTEBOOK).Digits(), Recipe())
    after = task_facts(cells(NOTEBOOK.replace(old, new)).Digits(), Recipe())
    assert after["loose_code"] != before["loose_code"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("x - 1", "x - 2"),
        ("\ndef scaled", "\n\n# said once more\ndef scaled"),
        ("seed = 0", "seed = 1"),
    ],
    ids=["run again", "not called", "a comment", "a value of an attribute's name"],
)
def test_the_same_cells_are_the_same_job(cells: Cells, old: str, new: str) -> None:
    before = task_facts(cells(NOTEBOOK).Digits(), Recipe())
    assert task_facts(cells(NOTEBOOK.replace(old, new)).Digits(), Recipe()) == before


def test_the_same_cells_are_the_same_job_in_another_process() -> None:
    code = (
        "import sys, types; from stepladder.ladder.keys import loose_code;"
        "module = types.ModuleType('a_notebook'); sys.modules['a_notebook'] = module;"
        "exec(sys.stdin.read(), module.__dict__); print(loose_code(module.Digits))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=NOTEBOOK,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert len(found.pop()) > 100


def test_code_of_a_file_is_counted_with_the_file() -> None:
    assert loose_code(Wide) == []


@pytest.mark.parametrize(
    "other",
    [
        Wide(16),
        Wide(drop=0.5),
        Wide(weights=torch.ones(3)),
        Wide(weights={"classes": [1, 2]}),
        Wide(weights=np.ones(3)),
        Wide(weights=torch.eye(2).to_sparse()),
        Wide(weights=torch.ones(2, device="meta")),
    ],
    ids=["a width", "a rate", "a tensor", "a mapping", "an array", "sparse", "without numbers"],
)
def test_other_arguments_are_another_job(other: Wide) -> None:
    assert task_facts(other, Recipe()) != task_facts(Wide(), Recipe())


def test_equal_arguments_are_the_same_job_wherever_files_lie_and_whatever_was_counted() -> None:
    one, other = (
        Wide(weights=torch.ones(3), store=Path("here")),
        Wide(weights=torch.ones(3), store=Path("there")),
    )
    before = task_facts(one, Recipe())
    other.build_model(Recipe())
    assert task_facts(other, Recipe()) == before


def test_nothing_of_the_task_is_touched() -> None:
    task, state = Wide(), torch.get_rng_state()
    task_facts(task, Recipe())
    assert task.num_built == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_another_model_by_the_same_arguments_is_another_job() -> None:
    class Deeper(Wide):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(super().build_model(recipe), nn.ReLU())

    Deeper.__qualname__ = Wide.__qualname__
    assert task_facts(Deeper(), Recipe())["model"] != task_facts(Wide(), Recipe())["model"]


def test_a_model_that_cannot_be_built_is_left_to_whoever_trains_it() -> None:
    class Broken(Wide):
        def build_model(self, recipe: Recipe) -> nn.Module:
            raise ValueError("no such layer")

    assert task_facts(Broken(), Recipe())["model"] is None


def test_of_the_built_in_task_the_recipe_tells_all(build_store, tmp_path: Path) -> None:
    build_store(tmp_path / "store", num_rows={"train": 8})
    task = ImageClassification(tmp_path / "store")
    assert task_facts(task, replace(Recipe(), seed=1)) == {}

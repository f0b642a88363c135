"""A notebook is run as a script, and its cells are the places that are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.errors import UsageError
from stepladder.watching.script.notebook import cell_with_imports, cells_of, source_of, whole_files
from stepladder.watching.script.script import refuse_no_python

FIRST = "%matplotlib inline\n!pip install torch\nimport torch\nfrom torch import nn"
TRAINING = """%%time
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(40):
    inputs = torch.randn(8, 4)
    loss = nn.functional.cross_entropy(net(inputs), (inputs.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
display(step)
if step == 0:
    !wget photographs"""


def notebook(*cells: str, language: str = "python", indent: int | None = 1) -> str:
    document = {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Überschrift — äöü"]},
            *(
                {
                    "cell_type": "code",
                    "execution_count": None,
                    "metadata": {},
                    "outputs": [],
                    "source": text.splitlines(keepends=True),
                }
                for text in cells
            ),
        ],
        "metadata": {"kernelspec": {"language": language, "name": language}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"


def test_a_fault_in_a_cell_is_named_by_cell_and_line(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(FIRST, TRAINING))
    command = [sys.executable, "-m", "stepladder", "watch", "train.ipynb"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "39\n"
    assert "missing_zero_grad: train.ipynb cell 2:8" in ran.stderr
    assert "leaves out: !wget photographs" in ran.stderr
    assert "pip" not in ran.stderr


@pytest.mark.thorough
def test_a_crash_names_cell_and_line(tmp_path: Path) -> None:
    (tmp_path / "train.ipynb").write_text(notebook(FIRST, "x = 0\n1 / x\n"))
    command = [sys.executable, "-m", "stepladder", "watch", "train.ipynb"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert 'train.ipynb cell 2", line 2' in ran.stderr
    assert "1 / x" in ran.stderr


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("%load_ext autoreload\nx = 1", "# IPython: %load_ext autoreload\nx = 1"),
        ("for i in x:\n    !ls {i}", "for i in x:\n    pass  # IPython: !ls {i}"),
        ("%%timeit\nx = 1", "# IPython: %%timeit\nx = 1"),
        ("%%bash\nls -l\n", "# IPython: %%bash\n# IPython: ls -l\n# IPython: "),
        ("net?\nnet??", "# IPython: net?\n# IPython: net??"),
        ("x = a % b\ny = (a\n     % b)", "x = a % b\ny = (a\n     % b)"),
        ("print('100 %')", "print('100 %')"),
    ],
)
def test_commands_are_comments_on_the_same_lines(tmp_path: Path, source: str, text: str) -> None:
    file = tmp_path / "train.ipynb"
    file.write_text(notebook(source))
    (cell,) = cells_of(file)
    if "%%bash" not in source:
        compile(cell.text, cell.file, "exec")
    assert cell.text == text


@pytest.mark.parametrize("indent", [1, 2, None])
def test_a_changed_cell_leaves_all_else_as_it_was(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "train.ipynb"
    before = notebook(FIRST, TRAINING, indent=indent)
    file.write_text(before)
    cell = cell_with_imports(file)
    text = source_of(cell)
    assert whole_files({cell: text}) == {file: before}
    after = whole_files({cell: text.replace("import torch\n", "import torch  # first\n")})
    assert after == {file: before.replace("import torch\\n", "import torch  # first\\n")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "not a notebook"),
        ('{"worksheets": []}', "not a notebook"),
        (notebook(), "no code"),
        (notebook("x <- 1", language="R"), "written in R"),
        (notebook("x = 1", "x = = 1"), "not a valid Python file"),
    ],
)
def test_what_cannot_be_run_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "train.ipynb"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        refuse_no_python(file, "train.ipynb")
    assert caught.value.fix
    if "valid" in said:
        assert caught.value.where == "train.ipynb cell 2:1"

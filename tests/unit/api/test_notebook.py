"""Training in a notebook shows its progress in the cell."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CELL = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import stepladder
from stepladder import Task

class Line(Task):
    def build_model(self, recipe):
        return nn.Linear(1, 1)
    def data(self, split):
        x = torch.linspace(0, 1, 64)[:, None]
        return TensorDataset(x, 3 * x + 1)
    def loss(self, model, batch):
        return (model(batch.inputs) - batch.targets).square().squeeze(1)

run = stepladder.train(task=Line(), train="all", epochs=40, **{"stopping.early": False})
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel
def test_progress_is_shown_in_the_cell(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = notebook.cells[0].outputs
    text = "".join(one.text for one in outputs if one.output_type == "stream")
    assert "validation after epoch 1: loss" in text
    assert "trained in" in text
    assert any(one.output_type == "display_data" for one in outputs)  # the line of progress
    assert (tmp_path / "runs" / "Line" / "report.html").is_file()

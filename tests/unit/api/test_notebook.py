"""Training in a notebook shows its progress in the cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TASK = """
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

job = {"task": Line(), "train": "all", "epochs": 40, "stopping.early": False}
"""
PICTURES = """
from pathlib import Path
import numpy as np
from PIL import Image

for split, num in (("train", 40), ("val", 8), ("test", 8)):
    for name in ("a", "b"):
        folder = Path("photos", split, name)
        folder.mkdir(parents=True)
        for idx in range(num):
            seed = sum(map(ord, split + name)) * 100 + idx
            pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{idx}.png")
"""
# The first report is due at once, so that a fast machine shows one, too
REPORTS_AT_ONCE = """
from stepladder.machine import activity
activity.FIRST_S = 0.0
activity._TICK_S = 0.01
"""
CELLS = {
    "prepare": "stepladder.prepare('photos', 'store', size=32)",
    "check": "stepladder.check(**{'run.dir': 'checked'}, **job);",
    "advise": "stepladder.advise(**{'run.dir': 'advised', 'ladder.block_s': 0.02}, **job);",
    "climb": "stepladder.climb(**{'run.dir': 'climbed', 'ladder.block_s': 0.02, "
    "'ladder.budget_s': 20.0, 'run.checks': 'off'}, **job);",
    "export": "stepladder.export(trained.path, 'torch')",
}


def outputs_of(cells: list[str], folder: Path) -> list[Any]:
    """Run a notebook in a folder, and return the outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel
def test_progress_is_shown_in_the_cell(tmp_path: Path) -> None:
    (outputs,) = outputs_of([TASK + "run = stepladder.train(**job)"], tmp_path)
    text = "".join(one.text for one in outputs if one.output_type == "stream")
    assert "validation after epoch 1: loss" in text
    assert "trained in" in text
    assert any(one.output_type == "display_data" for one in outputs)  # the line of progress
    assert (tmp_path / "runs" / "Line" / "report.html").is_file()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel
def test_every_function_that_takes_seconds_shows_its_progress(tmp_path: Path) -> None:
    train = (
        "trained = stepladder.train(store='store', dir='trained', epochs=1, "
        "**{'model.name': 'test_efficientnet', 'model.weights': 'none', 'train': 'all'});"
    )
    *cells, last = CELLS.items()
    texts = [code for _, code in cells]
    found = outputs_of([TASK, PICTURES, REPORTS_AT_ONCE, *texts, train, last[1]], tmp_path)
    shown = dict(zip(CELLS, [*found[3:-2], found[-1]], strict=True))
    for name, outputs in shown.items():
        assert any(one.output_type == "display_data" for one in outputs), name
    text = "".join(one.text for one in shown["climb"] if one.output_type == "stream")
    assert "trial 1 of" in text or "no rung" in text

"""Load a checkpoint from nothing but its folder, in a new process, on the CPU.

    python -m stepladder.checks.machine.fresh_load FOLDER

FOLDER has config.yaml, checkpoints/ and batch.pt. The outputs of the model on the batch are written
to outputs.pt, or the error to error.txt.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import nn

from stepladder.config.choices import Precision, WeightsSource
from stepladder.config.load import load_job
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.errors import StepladderError
from stepladder.models.classifier import build_classifier
from stepladder.task.contract import Task
from stepladder.task.load import BUILT_IN, load_task
from stepladder.training.checkpoint.checkpoint import check_fits, load_last

BATCH_FILE: Final = "batch.pt"
OUTPUTS_FILE: Final = "outputs.pt"
ERROR_FILE: Final = "error.txt"


def main(folder: Path, threads: int) -> None:
    """Load the newest weights of a folder and compute the outputs on its batch."""
    torch.set_num_threads(threads)
    try:
        outputs = _outputs(folder)
    except Exception as error:
        what = (
            str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}"
        )
        (folder / ERROR_FILE).write_text(what, encoding="utf-8")
        return
    torch.save(outputs, folder / OUTPUTS_FILE)


def _outputs(folder: Path) -> torch.Tensor:
    loaded = load_last(folder)
    recipe = _without_first_weights(load_job(folder / "config.yaml").recipe)
    batch = Batch(*torch.load(folder / BATCH_FILE, weights_only=True))
    name = str(loaded.state["task"])
    task: Task | None = None
    if name == BUILT_IN:
        facts = loaded.state["describe"]
        size, num_classes = int(facts["size"]), len(facts["classes"])
        model: nn.Module = build_classifier(
            recipe.model, recipe.head, seed=recipe.seed, num_classes=num_classes, image_size=size
        )
    else:
        task = load_task(name, store=recipe.data.store, recipe=recipe)
        model = task.build_model(recipe)
    model.float()
    check_fits(model.state_dict(), loaded)
    model.load_state_dict(loaded.weights)
    model.eval()
    with torch.inference_mode():
        if task is None:
            found: torch.Tensor = model(batch.inputs)
        else:
            metrics = task.metrics(model, batch)
            found = metrics.losses if metrics.outputs is None else metrics.outputs
    return found.float().clone()


def _without_first_weights(recipe: Recipe) -> Recipe:
    """Return a recipe without pretrained weights or a GPU: the file has all weights."""
    return replace(
        recipe,
        model=replace(recipe.model, weights=WeightsSource.NONE),
        device=replace(recipe.device, precision=Precision.FP32, compile=False),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

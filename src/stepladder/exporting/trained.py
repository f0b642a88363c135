"""Load a run's best model on the CPU in fp32, ready for prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from stepladder.config.choices import Fit, WeightsSource
from stepladder.config.load import load_job
from stepladder.config.recipe import Recipe
from stepladder.errors import DataError, UsageError
from stepladder.models.classifier import build_classifier
from stepladder.task.contract import Task
from stepladder.task.load import BUILT_IN
from stepladder.training.checkpoint.checkpoint import check_fits, load_best, load_last
from stepladder.training.checkpoint.checkpoint_files import Loaded


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model with the meaning of its inputs and outputs.

    Attributes:
        model: on the CPU, fp32, in evaluation mode; uint8 (n, 3, size, size) to logits (n, C).
        classes: names of the C classes.
        size: height and width of an image, in pixels.
        fit: how an image is made square.
        is_scaled: whether large JPEGs are decoded at a reduced size, as in training.
        white: sample value that becomes 255, if `prepare` was given one.
    """

    model: nn.Module
    classes: tuple[str, ...]
    size: int
    fit: Fit
    is_scaled: bool = True
    white: float | None = None


def load_trained(run: Path, *, task: Task | None = None) -> Trained:
    """Load the final weights of a run: the best, or the last if its recipe says so.

    Needs neither the store nor the trunk's initial weights, but a user's own Task.

    Raises:
        DataError: if the run has no intact checkpoint, or its Task has no classes or size.
        UsageError: if the run uses the user's own Task, and `task` is None.
    """
    loaded = load_best(run)
    facts = _facts(loaded, run)
    classes = tuple(str(name) for name in facts["classes"])
    size = int(facts["size"])
    recipe = _without_first_weights(load_job(run / "config.yaml").recipe)
    if not recipe.stopping.restore_best:
        loaded = load_last(run)
    name = str(loaded.state.get("task", BUILT_IN))
    if task is not None:
        model = task.build_model(recipe)
    elif name == BUILT_IN:
        model = build_classifier(
            recipe.model, recipe.head, seed=recipe.seed, num_classes=len(classes), image_size=size
        )
    else:
        raise UsageError(
            f"the run was trained with a custom Task, {name}",
            where=str(run),
            why="Only that Task can build the model.",
            fix="Call it from Python, with the Task: predict(run, pictures, task=YourTask()).",
        )
    model.float()
    check_fits(model.state_dict(), loaded)
    model.load_state_dict(loaded.weights)
    fit = Fit(str(facts.get("fit", Fit.PAD)))
    white = facts.get("max_sample_value")
    return Trained(
        model=model.eval(),
        classes=classes,
        size=size,
        fit=fit,
        is_scaled=recipe.loader.scaled_decode,
        white=None if white is None else float(white),
    )


def _facts(loaded: Loaded, run: Path) -> Mapping[str, Any]:
    facts = loaded.state.get("describe")
    if not isinstance(facts, dict) or not {"classes", "size"} <= facts.keys():
        raise DataError(
            "the run does not record which pictures its model takes and which classes it predicts",
            where=str(run),
            why="predict and export need `classes` and `size`, which the Task's describe() "
            "returns.",
            fix="Add them to describe() and train again, or load the weights in your own code: "
            "docs/tutorial-task.md, Use it.",
        )
    return facts


def _without_first_weights(recipe: Recipe) -> Recipe:
    return replace(recipe, model=replace(recipe.model, weights=WeightsSource.NONE))

"""Peak memory of a step, before and after a change."""

from __future__ import annotations

from typing import Final

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import PictureSource
from stepladder.data.reading.memory import decoded_bytes
from stepladder.ladder.accuracy.exactness import Material
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import free_memory
from stepladder.measuring.model.memory import peak_bytes
from stepladder.measuring.probe import is_out_of_memory
from stepladder.measuring.subject import open_subject

_WARM_UP_STEPS: Final = 2


def peak_frac(lab: Lab, before: Recipe, after: Recipe) -> float:
    """Return the ratio of peak memory after and before; 0 if the job did not fit before."""
    after_bytes = _peak_bytes(lab, after)
    try:
        before_bytes = _peak_bytes(lab, before)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        before_bytes = None
    if before_bytes is None:
        free_memory()
        return 0.0
    return after_bytes / before_bytes if before_bytes else 1.0


def _peak_bytes(lab: Lab, recipe: Recipe) -> int:
    """Return the peak memory of a step, plus that of pictures held in memory."""
    material = lab.material(recipe)
    with open_subject(recipe, material.task, material.sources, device=lab.device) as subject:
        batches = subject.reader().endless()
        try:
            for _ in range(_WARM_UP_STEPS):
                subject.step_on(batches)
            step_bytes = peak_bytes(lambda: subject.step_on(batches), lab.device)
        finally:
            batches.close()
    return step_bytes + _held_bytes(recipe, material)


def _held_bytes(recipe: Recipe, material: Material) -> int:
    train = material.sources.train
    if recipe.data.where is not Where.MEMORY or not isinstance(train, PictureSource):
        return 0
    return decoded_bytes(train, fraction=recipe.data.fraction)

"""Measure what decides how the model of a job is divided among devices."""

from __future__ import annotations

from stepladder.measuring.subject import Subject
from stepladder.records.model_size import ModelSize
from stepladder.training.setup.memory import size_of_job, two_examples


def job_size(subject: Subject) -> ModelSize | None:
    """Return the bytes of a job's model and step; None if it is frozen, or its layers are not seen.

    Compiled code shows no layers.
    """
    recipe = subject.recipe
    if recipe.device.compile or subject.is_trunk_frozen or recipe.device.divides_model:
        return None
    example = two_examples(recipe, subject.sources, subject.device)
    return size_of_job(recipe, subject.task, subject.model, example)

"""The time of one validation."""

from __future__ import annotations

import time

from stepladder.measuring.reading.held_validation import hold_batches, open_validation
from stepladder.measuring.subject import Subject
from stepladder.training.evaluate import evaluate

_ENOUGH_S = 0.3


def measure_validation(subject: Subject, *, budget_s: float) -> float | None:
    """Time a validation, scaled up from its first batches where all of them take too long.

    None without a validation split. Pictures that a run holds in memory lie ready, as for each of
    its validations but the first.
    """
    source = subject.sources.val
    reader = open_validation(subject.recipe, source)
    if source is None or reader is None:
        return None

    def per_example_s(num_batches: int) -> float:
        hold_batches(reader, num_batches)
        start_s = time.perf_counter()
        result = evaluate(
            subject.task,
            subject.model,
            reader,
            device=subject.device,
            precision=subject.recipe.device.precision,
            memory_format=subject.memory_format,
            max_batches=num_batches,
        )
        return (time.perf_counter() - start_s) / max(1, result.losses.size)

    try:
        example_s = per_example_s(1)  # chooses kernels, too
        batch_s = example_s * min(reader.global_batch_size, len(source))
        num_batches = min(reader.steps_per_epoch, int(min(budget_s, _ENOUGH_S) / batch_s))
        if num_batches:
            example_s = per_example_s(num_batches)
    finally:
        reader.close()
    return example_s * len(source)

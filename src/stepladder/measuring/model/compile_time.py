"""The time that compiling a model takes, cold."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from stepladder.measuring.blocks.cold import compiler_start_s
from stepladder.measuring.blocks.timing import seconds_of
from stepladder.measuring.subject import Subject
from stepladder.models.features import evaluating


def measure_compile(subject: Subject) -> float:
    """Take the first step and the first validation batch, which compile, and again for the rest.

    Within `cold_compiler`, on a subject that has not computed anything yet.

    Returns:
        Seconds that the first ones took more than the second ones, and of a process's first
        compilation.
    """
    batch = subject.batch_of(subject.batch_size)
    on_device = subject.to_device(batch)

    def step() -> None:
        subject.step_on(itertools.repeat(batch))

    def validate() -> None:
        with evaluating(subject.model), subject.autocast():
            subject.task.metrics(subject.model, on_device)

    more_s = sum(_first_over_second(run, subject) for run in (step, validate))
    return max(0.0, more_s) + compiler_start_s(subject.device)


def _first_over_second(run: Callable[[], None], subject: Subject) -> float:
    first_s = seconds_of(run, subject.device)
    return first_s - seconds_of(run, subject.device)

"""What a rung's own code raises drops that rung, and the climb goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stepladder.errors import InterruptedRun, ResourceError, StepladderError
from stepladder.ladder.limits.guard import TrialFailed, failure_words, free_memory
from stepladder.measuring.probe import is_out_of_memory
from stepladder.task.contract import Task
from stepladder.training.evaluate import EvaluationCancelled


@contextmanager
def faults_told(whose: str) -> Iterator[None]:
    """Turn whatever is raised into TrialFailed, in words that stand in a table cell.

    Ctrl-C and other requests to end pass through.

    Args:
        whose: what is at fault, put in front.

    Raises:
        TrialFailed: with the kind of the error and its message.
    """
    failure: str | None = None
    try:
        yield
    except (InterruptedRun, EvaluationCancelled):
        raise
    except Exception as error:
        failure = f"{whose} {failure_words(error)}"
    if failure is not None:
        free_memory()
        raise TrialFailed(failure)


@contextmanager
def job_faults_told(task: Task) -> Iterator[None]:
    """Say whose fault it is where a job as written cannot be measured.

    Raises:
        ResourceError: if it ran out of memory.
        StepladderError: for anything else.
    """
    try:
        yield
    except (StepladderError, EvaluationCancelled):
        raise
    except Exception as error:
        is_memory = is_out_of_memory(error)
        kind = ResourceError if is_memory else StepladderError
        smaller = "Give a smaller --batch.micro-batch-size; the result is equal."
        raise kind(
            f"the job could not be measured: it {failure_words(error)}",
            where=type(task).__name__,
            fix=smaller if is_memory else "Let `stepladder train` run a few steps of it first.",
        ) from error

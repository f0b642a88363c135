"""Errors in a trial end the trial, not the climb."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepladder.errors import DivergedError, InterruptedRun, ResourceError, StepladderError
from stepladder.measuring.probe import is_out_of_memory
from stepladder.measuring.watchdog import Hung, Watchdog
from stepladder.task.contract import Task
from stepladder.training.evaluate import EvaluationCancelled

__all__ = [
    "BudgetEnded",
    "Hung",
    "TooSlow",
    "TrialFailed",
    "Watchdog",
    "failure_words",
    "free_memory",
    "guarded",
]


class TooSlow(StepladderError):  # noqa: N818  (a finding)
    """A rung is so much slower that timing more blocks is pointless."""


class TrialFailed(StepladderError):  # noqa: N818  (a finding)
    """A trial ended before its verdict; `what` is the reason, short enough for a table cell."""


class BudgetEnded(TrialFailed):
    """A trial ran out of budget: a larger budget may decide it."""


@contextmanager
def guarded(watchdog: Watchdog) -> Iterator[None]:
    """Turn any error in a trial into TrialFailed, and free its memory.

    Ctrl-C and other requests to stop pass through.

    Raises:
        TrialFailed: with the reason.
    """
    failure: str | None = None
    kind = TrialFailed
    try:
        with watchdog.watching():
            yield
    except (InterruptedRun, EvaluationCancelled):
        raise
    except Hung:
        kind = BudgetEnded if watchdog.is_by_budget else TrialFailed
        why = "the budget ran out" if watchdog.is_by_budget else "hung"
        failure = f"{why}: not finished after {watchdog.deadline_s:.0f} s"
    except Exception as error:
        failure = failure_words(error)
        _forget_frames(error)
    if failure is not None:
        free_memory()
        raise kind(failure)


def failure_words(error: BaseException) -> str:
    """Return a description of an error that is short enough for a table cell."""
    if is_out_of_memory(error):
        return "ran out of memory"
    if isinstance(error, DivergedError):
        return "diverged: the loss is not a finite number"
    if isinstance(error, StepladderError):
        return error.what
    first = next(iter(str(error).splitlines()), "")
    return f"raised {type(error).__name__}: {first}" if first else f"raised {type(error).__name__}"


def free_memory() -> None:
    """Free unused memory, on the device too."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _forget_frames(error: BaseException) -> None:
    """Drop the traceback: its frames hold the trial's models and batches."""
    seen: Any = error
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


@contextmanager
def faults_told(whose: str) -> Iterator[None]:
    """Turn any exception into TrialFailed, with a message that is short enough for a table cell.

    Ctrl-C and other requests to stop pass through.

    Args:
        whose: prefix of the message that names what failed.

    Raises:
        TrialFailed: with the type of the error and its message.
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
    """Raise an error that names the task if the original job cannot be measured.

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
        smaller = "Use a smaller --batch.micro-batch-size; the result is the same."
        raise kind(
            f"the job could not be measured: it {failure_words(error)}",
            where=type(task).__name__,
            fix=smaller if is_memory else "First make a few steps of `stepladder train` work.",
        ) from error

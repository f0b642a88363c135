"""What a rung's own code raises drops that rung, and the climb goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stepladder.errors import InterruptedRun
from stepladder.ladder.guard import TrialFailed, failure_words, free_memory
from stepladder.train.evaluate import EvaluationCancelled


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

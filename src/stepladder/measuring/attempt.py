"""Probes that a profile can do without: one that fails leaves its numbers unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from stepladder.errors import StepladderError
from stepladder.measuring.probe import is_out_of_memory
from stepladder.measuring.watchdog import unless_hung
from stepladder.training.evaluate import EvaluationCancelled

Value = TypeVar("Value")

_LOST: Final = "took all memory, or hung"


@dataclass(frozen=True, kw_only=True)
class Attempt(Generic[Value]):
    """What a probe gave.

    Attributes:
        value: None where it failed, or found nothing.
        failed_because: why it failed, in words that follow the name of what was probed.
    """

    value: Value | None = None
    failed_because: str = _LOST


def attempt(
    measure: Callable[[], Value | None], *, foretold_s: float, at_least_s: float
) -> Attempt[Value]:
    """Try a probe, which fails where memory runs out, it hangs, or anything in it raises.

    A job whose steps can be taken is measured, whatever a probe of ours cannot do with its model.

    Args:
        foretold_s, at_least_s: see `unless_hung`.

    Raises:
        StepladderError: what a user can act on is told.
        EvaluationCancelled: someone asked for the end.
    """
    try:
        value = unless_hung(measure, foretold_s=foretold_s, at_least_s=at_least_s)
    except (StepladderError, EvaluationCancelled):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            return Attempt()
        first = next(iter(str(error).splitlines()), "")
        return Attempt(failed_because=f"raised {type(error).__name__}: {first}")
    return Attempt(value=value)

"""Flags of the commands that read training logs: audit and compare."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """Facts that a training log may not contain."""

    num_val: int | None = None
    """Number of held-out examples of the accuracy; none: read it from the log, or infer it."""
    num_train: int | None = None
    """Number of training examples per epoch."""
    num_test: int | None = None
    """Number of test examples."""
    metric: str | None = None
    """Column of the metric; none: validation accuracy if there is one, else validation loss."""

    def numbers(self) -> dict[str, Any]:
        """Return the flags as arguments of `stepladder.audit` and `stepladder.compare`."""
        return {field.name: getattr(self, field.name) for field in fields(LogFlags)}

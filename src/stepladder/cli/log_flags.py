"""Flags of the commands that read logs of trainings: audit and compare."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """What the log of a training may leave out."""

    num_val: int | None = None
    """Held-out examples that the accuracy stands on; none: as logged, or inferred."""
    num_train: int | None = None
    """Training examples of an epoch."""
    num_test: int | None = None
    """Test examples."""
    metric: str | None = None
    """Column that is judged; none: validation accuracy, else validation loss."""

    def numbers(self) -> dict[str, Any]:
        """Return the flags as arguments of `stepladder.audit` and `stepladder.compare`."""
        return {field.name: getattr(self, field.name) for field in fields(LogFlags)}

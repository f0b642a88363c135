"""Optimizers, schedules, learning-rate rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepladder.optim.kfac import Kfac as KFAC  # noqa: N814  (as the field writes it)

__all__ = ["KFAC"]


def __getattr__(name: str) -> Any:
    """Import an optimizer when it is asked for: `stepladder.optim.KFAC(model, lr=0.03)`."""
    if name == "KFAC":
        from stepladder.optim.kfac import Kfac

        return Kfac
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Matrices of which a rule needs all numbers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from stepladder.errors import UsageError


def require_whole(title: str, weights: Iterable[Tensor]) -> None:
    """Check that no weight is divided among devices.

    Raises:
        UsageError: if one is.
    """
    if any(hasattr(weight, "device_mesh") for weight in weights):
        raise UsageError(
            f"{title} needs whole matrices, but the model is divided among devices",
            where="optimizer.name",
            fix="Train with copies of the model, or with --optimizer.name adamw.",
        )


def as_matrix(tensor: Tensor) -> Tensor:
    """Return a weight or gradient with a row for each output, shape (out, in)."""
    return tensor.reshape(tensor.shape[0], -1)

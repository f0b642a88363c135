"""What rules for whole matrices share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from torch import Tensor

from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import UsageError
from stepladder.optim.contract import Group, Named

IS_MATRIX: Final = "is_matrix"
"""Option of a group: its weights are matrices or kernels."""


def matrix_groups(config: OptimizerConfig, learning: Named) -> list[Group]:
    """Return matrices and kernels, which decay, and vectors, which do not.

    Two groups also without weight decay, as the rule of vectors is another one.
    """
    parts = {
        is_matrix: [(name, weight) for name, weight in learning if (weight.dim() >= 2) is is_matrix]
        for is_matrix in (True, False)
    }
    return [
        {
            "params": members,
            "weight_decay": config.weight_decay if is_matrix else 0.0,
            IS_MATRIX: is_matrix,
        }
        for is_matrix, members in parts.items()
        if members
    ]


def as_matrix(tensor: Tensor) -> Tensor:
    """Return a weight or gradient with a row for each output, shape (out, in)."""
    return tensor.reshape(tensor.shape[0], -1)


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

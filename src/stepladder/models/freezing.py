"""Freeze parts of a model, including BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def freeze(module: nn.Module) -> None:
    """Freeze a module's weights, and set evaluation mode."""
    module.requires_grad_(False)
    module.eval()


def unfreeze(module: nn.Module) -> None:
    """Unfreeze a module's weights, and set training mode."""
    module.requires_grad_(True)
    module.train()


def is_frozen(module: nn.Module) -> bool:
    """Return True if a module has weights and all of them are frozen."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def set_training(model: nn.Module, frozen: Iterable[nn.Module] = ()) -> None:
    """Set a model to training mode, except for its frozen parts, which stay in evaluation mode.

    In training mode a frozen BatchNorm would still update its statistics, and a frozen dropout
    would still drop.
    """
    model.train()
    for module in frozen:
        module.eval()

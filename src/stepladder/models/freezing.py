"""Keep parts of a model as they are, BatchNorm's running statistics among them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def freeze(module: nn.Module) -> None:
    """Stop a module from learning, and put it in evaluation mode."""
    module.requires_grad_(False)
    module.eval()


def unfreeze(module: nn.Module) -> None:
    """Let a module learn, in training mode."""
    module.requires_grad_(True)
    module.train()


def is_frozen(module: nn.Module) -> bool:
    """Return True if a module has weights and none of them learns."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)


def set_training(model: nn.Module, frozen: Iterable[nn.Module] = ()) -> None:
    """Put a model in training mode, but for its frozen parts, which stay in evaluation mode.

    In training mode a frozen BatchNorm would still move its statistics, and a frozen dropout would
    still drop.
    """
    model.train()
    for module in frozen:
        module.eval()

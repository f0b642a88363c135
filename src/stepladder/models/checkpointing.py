"""Gradient checkpointing: recompute activations in the backward pass instead of storing them.

Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.utils.checkpoint import checkpoint

from stepladder.errors import UsageError
from stepladder.models.forwards import Replacement, own_forward, set_forward

_SETTERS = ("set_grad_checkpointing", "gradient_checkpointing_enable")


def can_checkpoint(model: nn.Module) -> bool:
    """Return True if a model has a method that turns gradient checkpointing on."""
    return any(callable(getattr(model, name, None)) for name in _SETTERS)


def set_checkpointing(model: nn.Module, is_on: bool) -> None:
    """Turn gradient checkpointing on or off by the model's own method.

    BatchNorm then sees each batch twice, but updates its running statistics only once.
    """
    if callable(setter := getattr(model, "set_grad_checkpointing", None)):
        setter(is_on)
    elif is_on and callable(setter := getattr(model, "gradient_checkpointing_enable", None)):
        setter(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif callable(setter := getattr(model, "gradient_checkpointing_disable", None)):
        setter()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            set_forward(module, CountedOnce(module) if is_on else None)


def checkpoint_trunk(model: nn.Module, is_on: bool) -> None:
    """Turn gradient checkpointing of a timm model on or off: its own, or that of its blocks.

    Raises:
        UsageError: if the model supports neither.
    """
    setter = getattr(model, "set_grad_checkpointing", None)
    blocks = _blocks(model)
    for block in blocks:
        set_forward(block, None)
    if callable(setter):
        with contextlib.suppress(AssertionError, NotImplementedError):  # raised by some timm models
            setter(is_on)
            return
    if is_on and not blocks:
        raise UsageError(
            f"device.gradient_checkpointing cannot be used with {type(model).__name__}, which does "
            "not consist of blocks that could be computed again in the backward pass",
            fix="Leave out the option device.gradient_checkpointing.",
        )
    for block in blocks:
        set_forward(block, Checkpointed(block) if is_on else None)


class Checkpointed(Replacement):
    """The forward of a block whose activations are recomputed in the backward pass."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the block, and store only its inputs."""
        return checkpoint(own_forward(self.module), *args, use_reentrant=False, **kwargs)


class CountedOnce(Replacement):
    """The forward of a BatchNorm that does not update running statistics when recomputed.

    A forward pass within a backward pass is a recomputation.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the BatchNorm."""
        forward = own_forward(self.module)
        if torch.compiler.is_compiling() or not (self.module.training and _is_in_backward()):
            return forward(*args, **kwargs)
        before = {name: buffer.clone() for name, buffer in self.module.named_buffers(recurse=False)}
        try:
            return forward(*args, **kwargs)
        finally:
            with torch.no_grad():
                for name, value in before.items():
                    self.module.get_buffer(name).copy_(value)


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _blocks(model: nn.Module) -> list[nn.Module]:
    """List the child modules that have children; for a Sequential, its members."""
    blocks: list[nn.Module] = []
    for child in model.children():
        members = child.children() if isinstance(child, (nn.Sequential, nn.ModuleList)) else [child]
        blocks += [module for module in members if any(True for _ in module.children())]
    return blocks

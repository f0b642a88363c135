"""What is kept of a training step, so that it can be gone through again on a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.watching.hooks.tensors import tensors_in


@dataclass(frozen=True, kw_only=True)
class KeptCall:
    """A call of an outermost module in training mode, whatever its loss was."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def loss_of(self, model: nn.Module) -> Tensor:
        """Call a copy of the module, and take a weighted mean of its outputs for a loss.

        The weights are fixed and vary: squares would say nothing of outputs of length 1.
        """
        output = model(*self.args, **self.kwargs)
        record = callable(getattr(output, "values", None)) and not isinstance(output, Tensor)
        found = tensors_in(list(output.values()) if record else output)
        parts = [_weighted_mean(one) for one in found if one.requires_grad]
        if not parts:
            raise ValueError("its model gives no tensor with a gradient")
        return torch.stack(parts).sum()


@dataclass(frozen=True, kw_only=True)
class KeptBatch(KeptCall):
    """What one training step was made of.

    Attributes:
        loss: name of the function of torch.nn.functional that was called on the module's output.
        options: what that was given besides.
    """

    loss: str
    target: Tensor
    options: dict[str, Any]

    @property
    def num_examples(self) -> int:
        """Size of the batch."""
        return int(self.target.shape[0]) if self.target.dim() else 1

    def loss_of(self, model: nn.Module) -> Tensor:
        """Call a copy of the module, and the script's loss on its output."""
        output = model(*self.args, **self.kwargs)
        value: Tensor = getattr(F, self.loss)(output, self.target, **self.options)
        return value


def _weighted_mean(value: Tensor) -> Tensor:
    flat = value.float().flatten()
    places = torch.arange(flat.numel(), dtype=torch.float32, device=flat.device)
    return (flat * places.cos()).mean()


def let_go(value: Any) -> Any:
    """Detach what is kept from graphs."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(let_go(item) for item in value)
    if isinstance(value, dict) and type(value) is dict:
        return {key: let_go(item) for key, item in value.items()}
    return value

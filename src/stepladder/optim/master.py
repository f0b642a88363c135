"""Half-precision weights in the model, with an fp32 master copy for the optimizer.

An update of a half weight below 1/2048 of it rounds to nothing; on the master copy it adds up.

Source: Micikevicius et al. 2018, "Mixed Precision Training", 3.1, arXiv:1710.03740.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from stepladder.models.normalize import Normalize


def halve_(model: nn.Module, dtype: torch.dtype = torch.float16) -> nn.Module:
    """Convert a model's float weights and buffers to half precision, in place.

    BatchNorm stays float32, because its running statistics would otherwise not change.
    """
    for module in model.modules():
        if isinstance(module, Normalize):
            module.to(dtype)
        elif not isinstance(module, BatchNorm):
            _cast_own_(module, dtype)
    return model


class MasterWeights:
    """Fp32 copies of an optimizer's half weights, which it updates instead of them.

    Fp32 weights are their own masters. The order of a step, with torch's GradScaler:

        scaler.scale(loss).backward()
        master.take_grads_()          half gradients up, to fp32, still scaled
        scaler.unscale_(optimizer)    then clipping, scaler.step and scaler.update
        master.give_weights_()        masters down, rounded to half
        master.zero_grad()

    The masters are part of the optimizer's state (`stepladder.optim.state`).

    Args:
        optimizer: a new one of the model's weights; its groups are changed to the masters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []  # (half, master)
        for group in optimizer.param_groups:
            group["params"] = [self._master_of(weight) for weight in group["params"]]

    def take_grads_(self) -> None:
        """Move the half gradients to the masters as fp32."""
        for half, master in self._pairs:
            master.grad = None if half.grad is None else half.grad.float()
            half.grad = None

    def give_weights_(self) -> None:
        """Copy the masters to the model's half weights, with rounding."""
        with torch.no_grad():
            for half, master in self._pairs:
                half.copy_(master)

    def zero_grad(self) -> None:
        """Clear the gradients of the model's weights and of the masters."""
        self._optimizer.zero_grad(set_to_none=True)
        for half, _ in self._pairs:
            half.grad = None

    def _master_of(self, weight: nn.Parameter) -> nn.Parameter:
        if weight.dtype == torch.float32:
            return weight
        master = nn.Parameter(weight.detach().float())
        self._pairs.append((weight, master))
        return master


def _cast_own_(module: nn.Module, dtype: torch.dtype) -> None:
    for weight in module.parameters(recurse=False):
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    for name, buffer in module.named_buffers(recurse=False):
        if buffer.is_floating_point():
            setattr(module, name, buffer.to(dtype))

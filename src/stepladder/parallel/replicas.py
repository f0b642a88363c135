"""Compute the losses of a batch on several devices in one process, with a model on each.

This is how DataParallel and MirroredStrategy work. It is here for comparison: the weights are
copied to every device at each step, and one process starts the work of all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ModelLosses = Callable[[nn.Module, Any], Any]
"""Maps a model and a batch to losses (n,), and perhaps values (n,) to log by name."""


class _Losses(nn.Module):
    """A copy of a model with the loss, because a Task calls parts of its model as it likes."""

    def __init__(self, model: nn.Module, losses: ModelLosses) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Any) -> Any:
        """Return the losses of a batch."""
        return self._losses(self.model, batch)


class Replicas:
    """Computes the losses of the parts of a batch, each on its device.

    The copies of the weights are part of the graph, so the gradients of all parts are added up in
    the weights of the model. Running statistics (BatchNorm) are those of the first device.

    Args:
        model: on the first device, and used there without a copy.
        losses: maps a model and a batch to its losses.
        devices: one for each part; a CPU may be several of them.
    """

    def __init__(
        self, model: nn.Module, losses: ModelLosses, devices: Sequence[torch.device]
    ) -> None:
        self.devices = tuple(devices)
        self._model = model
        self._losses = losses
        self._copies = [_Losses(_copied(model, there), losses) for there in self.devices[1:]]

    def __call__(self, parts: Sequence[Any], begin: Callable[[int], None]) -> Any:
        """Return the losses of all parts on the first device, in order.

        Args:
            parts: batches with a method `to(device)`, at most one for each device.
            begin: called with the number of a part before its forward pass.
        """
        results = []
        for idx, (device, part) in enumerate(zip(self.devices, parts, strict=False)):
            begin(idx)
            if idx == 0:
                results.append(self._losses(self._model, part))
                continue
            copy = self._copies[idx - 1]
            on_it = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
            with on_it:
                tensors = self._tensors_on(device)
                results.append(functional_call(copy, tensors, (part.to(device),)))
        return _gathered(results, self.devices[0])

    def _tensors_on(self, device: torch.device) -> dict[str, Tensor]:
        """Copy the model's tensors; gradients of the copies of weights go to the weights."""
        weights = {
            name: one.to(device, copy=True) for name, one in self._model.named_parameters("model")
        }
        buffers = {
            name: one.detach().to(device, copy=True)
            for name, one in self._model.named_buffers("model")
        }
        return {**weights, **buffers}


def _copied(model: nn.Module, device: torch.device) -> nn.Module:
    copy = deepcopy(model).to(device)
    for weight in copy.parameters():
        weight.grad = None
    return copy


def _gathered(results: Sequence[Any], device: torch.device) -> Any:
    """Concatenate the losses, and the values to log, of several parts."""
    if not isinstance(results[0], tuple):
        return torch.cat([losses.to(device) for losses in results])
    losses = torch.cat([one[0].to(device) for one in results])
    logs: list[Mapping[str, Tensor]] = [one[1] for one in results]
    return losses, {name: torch.cat([one[name].to(device) for one in logs]) for name in logs[0]}

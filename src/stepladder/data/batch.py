"""What a reader yields and a step consumes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Some examples.

    Attributes:
        inputs: what the model is called with; for pictures uint8 (n, 3, h, w).
        targets: int64 (n,), or (n, C) shares of classes after MixUp; None where the inputs say all.
        ids: int64 (n,), on the CPU; the example's row in its split.
    """

    inputs: Any
    targets: Any
    ids: Tensor

    def to(
        self, device: torch.device, *, memory_format: torch.memory_format | None = None
    ) -> Batch:
        """Copy inputs and targets to a device; 4-d inputs into the memory format."""
        inputs = _move(self.inputs, device, memory_format)
        return Batch(inputs, _move(self.targets, device, None), self.ids)


def _move(value: Any, device: torch.device, memory_format: torch.memory_format | None) -> Any:
    if isinstance(value, Tensor):
        if memory_format is not None and value.dim() == 4:
            return value.to(device, non_blocking=True, memory_format=memory_format)
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {key: _move(item, device, memory_format) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_move(item, device, memory_format) for item in value)
    return value

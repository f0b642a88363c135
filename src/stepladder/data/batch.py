"""The batch that a reader yields and a training step consumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A batch of examples.

    Attributes:
        inputs: what the model is called with; for pictures uint8 (n, 3, h, w).
        targets: int64 (n,), or (n, C) class weights after MixUp; None if inputs include them.
        ids: int64 (n,), on the CPU; the example's row in its split.
    """

    inputs: Any
    targets: Any
    ids: Tensor

    def to(
        self, device: torch.device, *, memory_format: torch.memory_format | None = None
    ) -> Batch:
        """Copy inputs and targets to a device; 4-d inputs into the memory format.

        Pinned tensors are copied to a GPU on a separate stream, so that the copy overlaps with the
        previous step; the current stream waits for the copy.
        """
        inputs = _move(self.inputs, device, memory_format)
        return Batch(inputs, _move(self.targets, device, None), self.ids)

    def rows(self, rows: slice) -> Batch:
        """Return some of the examples, as views."""
        return Batch(_rows(self.inputs, rows), _rows(self.targets, rows), self.ids[rows])

    @classmethod
    def joined(cls, batches: Sequence[Batch]) -> Batch:
        """Concatenate batches whose inputs and targets are tensors."""
        return cls(*(torch.cat(tensors) for tensors in zip(*batches, strict=True)))


def _rows(value: Any, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: _rows(item, rows) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rows(item, rows) for item in value)
    return value


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _copy_beside(value: Tensor, device: torch.device, memory_format: torch.memory_format) -> Tensor:
    """Copy a pinned tensor on the device's copy stream."""
    stream, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        moved = value.to(device, non_blocking=True, memory_format=memory_format)
    current.wait_stream(stream)
    moved.record_stream(current)  # no other copy may reuse its memory while a step reads it
    return moved


def _move(value: Any, device: torch.device, memory_format: torch.memory_format | None) -> Any:
    if isinstance(value, Tensor):
        wanted = memory_format if value.dim() == 4 and memory_format else torch.preserve_format
        if device.type == "cuda" and value.is_pinned():
            return _copy_beside(value, device, wanted)
        return value.to(device, non_blocking=True, memory_format=wanted)
    if isinstance(value, dict):
        return {key: _move(item, device, memory_format) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_move(item, device, memory_format) for item in value)
    return value

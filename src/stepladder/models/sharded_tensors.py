"""Tensors of which each rank has a part (torch's DTensor), or one rank has all; others are plain.

Nothing of torch.distributed is imported unless a tensor is one: that takes seconds.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_ROW_ORDER: Final = "stepladder_row_order"
_HOLDER: Final = "stepladder_holder"


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this rank may have only a part of a tensor, or nothing of it."""
    return hasattr(tensor, "full_tensor") or hasattr(tensor, _HOLDER)


def set_row_order(tensor: Tensor, order: Tensor) -> None:
    """Note that row i of a tensor is row order[i] of the one that a single process has."""
    setattr(tensor, _ROW_ORDER, order)


def row_order(tensor: Tensor) -> Tensor | None:
    """Return the order of a tensor's rows; None: that of a single process."""
    return getattr(tensor, _ROW_ORDER, None)


def set_holder(tensor: Tensor, rank: int) -> None:
    """Note that one rank has all of a tensor; other ranks have it on the meta device."""
    setattr(tensor, _HOLDER, rank)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as a single process has it; a collective if it is divided."""
    holder = getattr(tensor, _HOLDER, None)
    if holder is not None:
        return _from(holder, tensor)
    if not hasattr(tensor, "full_tensor"):
        return tensor
    found: Tensor = tensor.full_tensor()
    order = row_order(tensor)
    if order is not None:
        rows = found
        found = torch.empty_like(rows)
        found[order.to(rows.device)] = rows
    return found


def _from(holder: int, tensor: Tensor) -> Tensor:
    """Return a tensor that one rank has, on all ranks."""
    import torch.distributed as dist

    if tensor.is_meta:
        there = torch.empty(tensor.shape, dtype=tensor.dtype)
    else:
        there = tensor.detach().cpu().contiguous()
    dist.broadcast(there, src=holder)
    return there


@torch.no_grad()
def assign_(there: Tensor, tensor: Tensor) -> None:
    """Copy a tensor into one that may be divided among ranks; then a collective.

    Args:
        there: what is written.
        tensor: whole, and then equal on all ranks; or divided in the same way.
    """
    if there.is_meta:  # another rank has it
        return
    if hasattr(there, _HOLDER):
        there.copy_(tensor)
        return
    _distribute_(there, tensor)


@torch.no_grad()
def assign_from_main_(there: Tensor, tensor: Tensor | None) -> None:
    """Copy a tensor that only rank 0 has into one that is divided; a collective.

    Args:
        tensor: whole; None on other ranks.
    """
    if hasattr(there, _HOLDER):
        found = _from(0, torch.empty_like(there, device="meta") if tensor is None else tensor)
        if not there.is_meta:
            there.copy_(found)
        return
    _distribute_(there, tensor)


def _distribute_(there: Tensor, tensor: Tensor | None) -> None:
    """Copy a tensor, of which that of rank 0 counts, or one that is divided in the same way."""
    if not hasattr(there, "full_tensor") or (tensor is not None and hasattr(tensor, "full_tensor")):
        assert tensor is not None
        there.copy_(tensor)
        return
    from torch.distributed.tensor import distribute_tensor

    parts: Any = there
    if tensor is None:
        tensor = torch.empty(there.shape, dtype=there.dtype, device=there.device)
    tensor = tensor.to(there.device, there.dtype)
    order = row_order(there)
    if order is not None:
        tensor = tensor[order.to(tensor.device)]
    there.copy_(distribute_tensor(tensor, parts.device_mesh, parts.placements))

"""Tensors of which each rank has a part (torch's DTensor); others are left as they are.

Nothing of torch.distributed is imported unless a tensor is one: that takes seconds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this rank has only a part of a tensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that is put together from all ranks; a collective if it is divided."""
    found: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return found


@torch.no_grad()
def assign_(there: Tensor, tensor: Tensor | None) -> None:
    """Copy a tensor into one that may be divided among ranks; then a collective.

    Args:
        there: what is written.
        tensor: whole, of which that of rank 0 counts; or divided in the same way; None, on other
            ranks than 0, if only rank 0 has it.
    """
    if not is_sharded(there) or (tensor is not None and is_sharded(tensor)):
        assert tensor is not None
        there.copy_(tensor)
        return
    from torch.distributed.tensor import distribute_tensor

    own: Any = there
    if tensor is None:
        tensor = torch.empty(there.shape, dtype=there.dtype, device=there.device)
    tensor = tensor.to(there.device, there.dtype)
    there.copy_(distribute_tensor(tensor, own.device_mesh, own.placements))

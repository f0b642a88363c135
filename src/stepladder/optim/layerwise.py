"""Norms of whole tensors, and their ratio, for LARS and LAMB."""

from __future__ import annotations

import torch
from torch import Tensor


def norm_of(tensor: Tensor) -> Tensor | float:
    """Return the norm of a whole tensor, of which ranks may have a part each."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    if hasattr(norm, "full_tensor"):  # a DTensor, which multiplies no other kind of tensor
        return float(norm.full_tensor())
    return norm


def ratio_of(above: Tensor | float, below: Tensor | float) -> Tensor | float:
    """Return a ratio of norms; 1 where one of them is 0, so that a weight of zeros can move."""
    if isinstance(above, float) or isinstance(below, float):
        return above / below if above > 0 and below > 0 else 1.0
    return torch.where((above > 0) & (below > 0), above / below, 1.0)

"""What LARS and LAMB share: which weights they adapt, and by the norms of whole tensors."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import Group, Named

ADAPTS: Final = "adapts"
"""Option of a group: its weights have a rate of their own."""


def layerwise_groups(config: OptimizerConfig, learning: Named) -> list[Group]:
    """Return matrices and kernels, which are adapted and decay, and vectors, which do neither.

    Also without weight decay, where some ports adapt nothing.
    """
    parts = {
        adapts: [(name, weight) for name, weight in learning if (weight.dim() >= 2) is adapts]
        for adapts in (True, False)
    }
    return [
        {
            "params": members,
            "weight_decay": config.weight_decay if adapts else 0.0,
            ADAPTS: adapts,
        }
        for adapts, members in parts.items()
        if members
    ]


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

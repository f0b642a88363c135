"""Counters in an optimizer's state: tensors in torch's optimizers, numbers in ours."""

from __future__ import annotations

from typing import Any

import torch

HOST_SCALARS = frozenset({"step", "mu_product"})
"""State that torch keeps on the CPU, unless an optimizer is fused or capturable."""


def as_numbers_(state: dict[str, Any]) -> None:
    """Convert the counters of a weight's state to numbers, in place."""
    for key in HOST_SCALARS & state.keys():
        state[key] = float(state[key])


def as_tensors_(state: dict[str, Any]) -> None:
    """Convert the counters of a weight's state to tensors like torch's, in place."""
    dtype = torch.float64 if torch.get_default_dtype() is torch.float64 else torch.float32
    for key in HOST_SCALARS & state.keys():
        state[key] = torch.as_tensor(state[key], dtype=dtype)

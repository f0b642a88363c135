"""Make optimizers without the compiler, whose import takes longer than a short training."""

from __future__ import annotations

import sys
from typing import Final

import torch

_EXCLUDED: Final = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_CHOSEN: Final = "__dynamo_disable"
"""Attribute in which `torch._compile` keeps what it calls instead of a method."""


def leave_compiler_out() -> None:
    """Let optimizers be made and used without importing `torch._dynamo`.

    PyTorch excludes these methods from compiled code, and to do so imports its compiler when the
    first optimizer is made: 1.3 seconds of CPU time, also if nothing is compiled. Outside of
    compiled code, which never calls them here, the exclusion changes nothing. Does nothing once the
    compiler is imported, or if PyTorch does it in another way.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in _EXCLUDED:
        exclude_as_is(torch.optim.Optimizer, name)


def exclude_as_is(owner: type, name: str) -> None:
    """Let a method that PyTorch excludes from compiled code be called without the compiler."""
    method = getattr(owner, name, None)
    while (plain := getattr(method, "__wrapped__", None)) is not None:
        method = plain
    if method is not None and not hasattr(method, _CHOSEN):
        setattr(method, _CHOSEN, method)

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
        method = getattr(torch.optim.Optimizer, name, None)
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, _CHOSEN):
            setattr(plain, _CHOSEN, plain)

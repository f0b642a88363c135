"""Compile a model's passes of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def compile_training(model: nn.Module) -> None:
    """Compile the passes that train; others, of all kinds of shapes, run as before.

    The text for diffs is in `scripts.rungs.compile`. As with `compile` alone, a copy of the model
    is not compiled.
    """
    model.compile()
    fast = model._compiled_call_impl
    assert fast is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        trains = model.training and torch.is_grad_enabled()
        return (fast if trains else model._call_impl)(*args, **kwargs)

    model._compiled_call_impl = call

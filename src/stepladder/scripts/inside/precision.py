"""Let a model compute in float32 between inputs and outputs in float64."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def compute_in_single(model: nn.Module) -> None:
    """Make the weights of a model float32, in place, and cast what it receives and returns."""
    model.float()
    model.register_forward_pre_hook(inputs_as_float32, with_kwargs=True)
    model.register_forward_hook(outputs_as_float64)


def cast_floats(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """Return a value in which tensors of one precision have another one."""
    if isinstance(value, Tensor):
        return value.to(new) if value.dtype is old else value
    if isinstance(value, dict):
        named = {key: cast_floats(item, old, new) for key, item in value.items()}
        changed = {key: item for key, item in named.items() if item is not value[key]}
        found = copy.copy(value) if changed else value
        for key, item in changed.items():
            found[key] = item
        return found
    if isinstance(value, (list, tuple)):
        items = [cast_floats(item, old, new) for item in value]
        if all(one is item for one, item in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def inputs_as_float32(_model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return arguments with float32 instead of float64, as a hook before forward."""
    return cast_floats((args, kwargs), torch.float64, torch.float32)


def outputs_as_float64(_model: nn.Module, _args: Any, output: Any) -> Any:
    """Return an output with float64 instead of float32, as a hook after forward."""
    return cast_floats(output, torch.float32, torch.float64)

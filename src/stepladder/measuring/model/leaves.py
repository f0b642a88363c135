"""The single operations of a model: its leaf modules with their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as _Dropout
from torch.utils._pytree import tree_leaves, tree_map

NORMS = (BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_VIEWS = (nn.Identity, nn.Flatten, nn.Unflatten)
_WHOLE = (BatchNorm, nn.MultiheadAttention)  # one operation, whatever modules they contain


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a leaf module, with its inputs.

    Attributes:
        args, kwargs: as recorded, on few examples.
        follows_conv: the previous module is a convolution with as many output channels.
        norm: the BatchNorm called right after a convolution; None without one.
        is_pointwise: an elementwise or normalization operation, without a matrix product.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    follows_conv: bool
    is_pointwise: bool
    norm: nn.BatchNorm2d | None = None

    @property
    def key(self) -> str:
        """A key that is equal for calls of the same duration: same module, same inputs."""
        weights = [tuple(weight.shape) for weight in self.module.parameters()]
        inputs = [
            (tuple(value.shape), value.dtype, value.requires_grad)
            if isinstance(value, Tensor)
            else value
            for value in tree_leaves((self.args, dict(self.kwargs)))
        ]
        learns = [weight.requires_grad for weight in self.module.parameters()]
        kind = type(self.module).__qualname__
        after = f"{type(self.norm).__qualname__} {self.norm}" if self.norm is not None else ""
        return f"{kind} {self.module} {self.module.training} {weights} {learns} {inputs} {after}"


def record_calls(model: nn.Module, run: Callable[[], object]) -> list[Call]:
    """Run a model and record each call of a leaf module, in order.

    Operations outside of leaf modules (such as additions) are not recorded.
    """
    calls: list[Call] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before = calls[-1].module if calls else None
        channels = getattr(module, "num_features", None)
        follows_conv = isinstance(before, nn.Conv2d) and before.out_channels == channels
        if follows_conv and isinstance(module, nn.BatchNorm2d):
            calls[-1] = replace(calls[-1], norm=module)
        calls.append(
            Call(
                module=module,
                args=_detached(args),
                kwargs=_detached(kwargs),
                follows_conv=follows_conv,
                is_pointwise=_is_pointwise(module, args, output),
            )
        )

    _run_noting(model, run, note)
    return calls


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Bytes that leaf modules read and write: activations and weights."""

    activations: int
    weights: int


def count_moved(model: nn.Module, run: Callable[[], object]) -> Moved:
    """Run a model and sum the bytes that each leaf module reads and writes.

    As if each were a separate kernel and nothing stayed in a cache between two. Modules that return
    a view of their input move nothing.
    """
    activations = weights = 0

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal activations, weights
        if isinstance(module, _VIEWS) or (isinstance(module, _Dropout) and not module.training):
            return
        values = tree_leaves((args, dict(kwargs), output))
        activations += sum(value.nbytes for value in values if isinstance(value, Tensor))
        weights += sum(value.nbytes for value in (*module.parameters(), *module.buffers()))

    _run_noting(model, run, note)
    return Moved(activations=activations, weights=weights)


def _run_noting(
    model: nn.Module, run: Callable[[], object], note: Callable[[nn.Module, Any, Any, Any], None]
) -> None:
    """Run a model and call `note` after each of its leaf modules, as a forward hook."""
    leaves = {id(leaf): leaf for leaf in _leaves(model)}  # a module used twice is listed once
    hooks = [leaf.register_forward_hook(note, with_kwargs=True) for leaf in leaves.values()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()


def _leaves(module: nn.Module) -> list[nn.Module]:
    children = list(module.children())
    if isinstance(module, _WHOLE) or not children:
        return [module]
    return [leaf for child in children for leaf in _leaves(child)]


def _is_pointwise(module: nn.Module, args: Any, output: Any) -> bool:
    if isinstance(module, NORMS):
        return True
    first = next((value for value in tree_leaves(args) if isinstance(value, Tensor)), None)
    is_like = isinstance(output, Tensor) and first is not None and output.shape == first.shape
    return is_like and next(module.parameters(), None) is None


def _detached(values: Any) -> Any:
    """Detach recorded tensors from their graph; keep requires_grad."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(one, values)


def enlarge(values: Any, times: int, *, memory_format: torch.memory_format) -> Any:
    """Repeat recorded inputs along their first dimension, 4-d ones in a memory format."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() == 0:
            return value
        large = value.detach().repeat(times, *[1] * (value.dim() - 1))
        if large.dim() == 4:
            large = large.contiguous(memory_format=memory_format)
        return large.requires_grad_(value.requires_grad)

    return tree_map(one, values)

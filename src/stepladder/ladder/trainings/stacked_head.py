"""The forward pass of many heads of one form at once, their weights stacked.

Stacked matrices lie transposed, (heads, in, out), as their gradients are computed: laid out as they
are in a head, each step would copy the gradient of every one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

Scorer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
"""From stacked weights by name and (heads, n, ...) inputs to (heads, n, ...) scores."""

_CONTIGUOUS: Final = torch.contiguous_format
_Layer = Callable[[Mapping[str, Tensor], Tensor], Tensor]
_POINTWISE: Final = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.Tanh,
    nn.Sigmoid,
)


def stacked_scorer(head: nn.Module, names: frozenset[str]) -> Scorer:
    """Give the forward pass of heads like this one.

    Linear layers and functions of single numbers, one after the other, are called on all heads as
    they are; any other head by torch's vmap, which costs a small step twice its time.

    Args:
        head: in the mode, training or evaluation, that scores are wanted in.
        names: weights that are stacked; the others are this head's own.
    """
    layers = list(_layers(head, names, ""))
    if None in layers:
        return _by_vmap(head)

    def score(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        for layer in layers:
            assert layer is not None
            inputs = layer(weights, inputs)
        return inputs

    return score


def stack(weights: Sequence[Tensor]) -> Tensor:
    """Stack a weight of each head."""
    stacked = torch.stack([weight.detach() for weight in weights])
    return stacked.mT.contiguous() if stacked.dim() == 3 else stacked


def unstack(stacked: Tensor, idx: int) -> Tensor:
    """Give a copy of the weight of one head."""
    weight = stacked.detach()[idx]
    return (weight.mT if stacked.dim() == 3 else weight).clone(memory_format=_CONTIGUOUS)


def _layers(
    module: nn.Module | None, names: frozenset[str], prefix: str
) -> Iterator[_Layer | None]:
    """Give what a head does, in order; None where that is not known."""
    if module is None or module._forward_hooks or module._forward_pre_hooks:
        yield None
    elif type(module) is nn.Sequential:
        for name, child in module._modules.items():  # one that comes twice, twice
            yield from _layers(child, names, f"{prefix}{name}.")
    elif type(module) is nn.Linear:
        yield _linear(module, names, prefix)
    elif type(module) in _POINTWISE:
        yield lambda _, inputs: module(inputs)
    else:
        yield None


def _linear(module: nn.Linear, names: frozenset[str], prefix: str) -> _Layer | None:
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in names or (module.bias is not None and bias not in names):
        return None

    def call(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        matrix = weights[weight]  # (heads, in, out)
        rows = inputs.flatten(1, -2)  # (heads, n, in)
        if module.bias is None:
            scores = torch.bmm(rows, matrix)
        else:
            scores = torch.baddbmm(weights[bias].unsqueeze(1), rows, matrix)
        return scores.reshape(*inputs.shape[:-1], -1)

    return call


def _by_vmap(head: nn.Module) -> Scorer:
    def score_one(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        scores: Tensor = functional_call(head, dict(weights), (inputs,))
        return scores

    def score(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        as_in_head = {name: w.mT if w.dim() == 3 else w for name, w in weights.items()}
        scores: Tensor = vmap(score_one, randomness="different")(as_in_head, inputs)
        return scores

    return score

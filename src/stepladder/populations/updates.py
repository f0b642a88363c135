"""One optimizer for all members: the rule is shared, rates and decays are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import Decay
from stepladder.optim.optimizers import build_optimizer, step_function
from stepladder.optim.table import spec_of

SHARED = ("optimizer.weight_decay", "optimizer.clip_norm", "batch.lr")
"""Genes of the optimizer that can differ between members that share it."""


class Updates:
    """Takes a step of all members at once.

    An elementwise rule moves a weight by its learning rate times a direction that does not depend
    on the weight. So one optimizer with a learning rate of 1 moves tensors of zeros, which are then
    the negative directions; each member adds its own learning rate times its part. Weight decay is
    added for each member as the optimizer's kind of decay says.

    Args:
        config: of the recipe; its decay and clipping are ignored.
        weights: stacked, (members, ...), by name.
    """

    def __init__(self, config: OptimizerConfig, weights: Mapping[str, Tensor]) -> None:
        spec = spec_of(config.name)
        self._decay = spec.decay
        first = next(iter(weights.values()))
        self._moves = {name: nn.Parameter(torch.zeros_like(w)) for name, w in weights.items()}
        plain = replace(
            config,
            weight_decay=0.0,
            clip_norm=None,
            fused=spec.can_fuse(first.device.type),
        )
        self._optimizer = build_optimizer(plain, self, lr=1.0)
        self._take_step = step_function(self._optimizer)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what the optimizer moves."""
        yield from self._moves.items()

    def __call__(
        self,
        weights: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        *,
        lr: Tensor,
        decay: Tensor | None = None,
        clip_norm: Tensor | None = None,
    ) -> None:
        """Move the weights by one step, in place; the gradients may be changed.

        Shapes: weights and gradients (members, ...); lr, decay and clip_norm (members,). Weights
            with two dimensions or more per member decay, as in training.
        """
        if clip_norm is not None:
            _clip_(grads, clip_norm)
        for name, weight in weights.items():
            grad = grads[name]
            if decay is not None and weight.dim() > 2 and self._decay is Decay.L2:
                grad = grad.addcmul(weight, _column(decay, weight))
            move = self._moves[name]
            move.detach().zero_()
            move.grad = grad
        self._take_step()
        for name, weight in weights.items():
            if decay is not None and weight.dim() > 2 and self._decay is Decay.DECOUPLED:
                weight.mul_(1 - _column(lr * decay, weight))
            weight.addcmul_(self._moves[name].detach(), _column(lr, weight))

    def inherit(self, parents: Sequence[int]) -> None:
        """Copy the state of each member's parent."""
        for tensor in self._like_weights():
            tensor.copy_(tensor[torch.as_tensor(parents, device=tensor.device)])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state's tensors by name, and its numbers."""
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        for name, move in self._moves.items():
            for key, value in self._optimizer.state[move].items():
                if isinstance(value, Tensor):
                    tensors[f"{name}.{key}"] = value
                else:
                    numbers[f"{name}.{key}"] = value
        return tensors, numbers

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        for name, move in self._moves.items():
            state = self._optimizer.state[move]
            state.clear()
            for source in (tensors, numbers):
                for key, value in source.items():
                    owner, _, own = key.rpartition(".")
                    if owner == name:
                        state[own] = value.clone() if isinstance(value, Tensor) else value

    def _like_weights(self) -> Iterator[Tensor]:
        for move in self._moves.values():
            for value in self._optimizer.state[move].values():
                if isinstance(value, Tensor) and value.shape == move.shape:
                    yield value


def why_no_shared_update(config: OptimizerConfig) -> str | None:
    """Return why members cannot share the optimizer of a recipe; None if they can."""
    spec = spec_of(config.name)
    if not spec.is_elementwise:
        return f"{spec.title} uses whole weights, which would mix the members"
    return None


def _column(values: Tensor, weight: Tensor) -> Tensor:
    """Return one value per member in a shape that multiplies its weights."""
    return values.reshape(-1, *[1] * (weight.dim() - 1))


def _clip_(grads: Mapping[str, Tensor], most: Tensor) -> None:
    """Scale the gradients of each member to at most a norm, as torch's clip_grad_norm_ does."""
    squares = [grad.flatten(1).square().sum(dim=1) for grad in grads.values()]
    norms = torch.stack(squares).sum(dim=0).sqrt()
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    for grad in grads.values():
        grad.mul_(_column(factors, grad))

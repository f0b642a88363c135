"""Measure the gain of a larger batch from the gradients of its parts, while they are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from stepladder.config.choices import LrRule
from stepladder.config.recipe import BatchConfig, Recipe
from stepladder.errors import UsageError
from stepladder.optim.adascale import AdaScale
from stepladder.optim.table import spec_of
from stepladder.parallel.agreement import sum_of
from stepladder.parallel.world import World


class NoMeter:
    """Measures nothing."""

    def begin(self) -> None:
        """Do nothing at the beginning of a step."""

    def end_part(self, num: int) -> None:
        """Do nothing after the backward pass of a part."""

    def end(self, *, num: int, loss_scale: Callable[[], float | None]) -> None:
        """Do nothing after a step."""


class GainMeter(NoMeter):
    """Measures AdaScale's gain by a hook on each weight, which sees the gradient of each part.

    A part is what one rank computes in one forward pass. The hooks see the gradients before they
    are averaged over ranks.

    Args:
        optimizer: its groups hold the trainable weights.

    Attributes:
        gain: of the steps so far.
    """

    def __init__(self, gain: AdaScale, optimizer: Optimizer, world: World) -> None:
        self.gain = gain
        self._world = world
        self._weights: list[Tensor] = [
            weight for group in optimizer.param_groups for weight in group["params"]
        ]
        self._norms: list[Tensor] = []
        self._parts_sq: Tensor | float = 0.0
        self._num_parts = 0
        self._is_open = False
        see = self._see
        self._hooks = [one.register_hook(see) for one in self._weights]  # type: ignore[no-untyped-call]

    def _see(self, gradient: Tensor) -> None:
        if self._is_open:
            self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32))

    def begin(self) -> None:
        """Begin a step."""
        self._parts_sq, self._num_parts, self._is_open = 0.0, 0, True
        self._norms.clear()

    def end_part(self, num: int) -> None:
        """End the backward pass of a part.

        Args:
            num: its examples; 0 if it does not count.
        """
        if num and self._norms:
            self._parts_sq = self._parts_sq + torch.stack(self._norms).square().sum() / num
            self._num_parts += 1
        self._norms.clear()

    def end(self, *, num: int, loss_scale: Callable[[], float | None]) -> None:
        """End a step, after its gradients were averaged. Waits for the device; a collective.

        Args:
            num: examples of the step, over all ranks; each weighs ranks / num in the loss.
            loss_scale: returns that of fp16; otherwise None.
        """
        self._is_open = False
        scale = loss_scale() or 1.0
        weight = scale * self._world.size / num
        sums = {"sq": float(self._parts_sq), "parts": float(self._num_parts)}
        sums = sum_of(self._world, sums)
        grads = [one.grad for one in self._weights if one.grad is not None]
        whole = float(torch.nn.utils.get_total_norm(grads))
        self.gain.observe(
            parts_sq=sums["sq"] / (num * weight**2),
            whole_sq=(whole / scale) ** 2,
            num_parts=round(sums["parts"]),
            num=num,
        )

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()


def gain_meter(batch: BatchConfig, optimizer: Optimizer, world: World) -> GainMeter | None:
    """Return what measures the gain of a larger batch, if it sets the learning rate."""
    size, base = batch.global_batch_size, batch.base_batch_size
    if batch.lr_rule is not LrRule.ADASCALE or size == base:
        return None
    return GainMeter(AdaScale(batch=size, base=base), optimizer, world)


def require_gain(recipe: Recipe) -> None:
    """Check that AdaScale can measure a gain, if it sets the learning rate of a recipe.

    Raises:
        UsageError: if it cannot.
    """
    if recipe.batch.lr_rule is not LrRule.ADASCALE:
        return
    if not spec_of(recipe.optimizer.name).batch_rule.follows_noise_scale:
        raise UsageError(
            f"AdaScale is derived for SGD, not for {recipe.optimizer.name}",
            where="batch.lr_rule",
            fix="Use --optimizer.name sgd, or --batch.lr-rule sqrt.",
        )
    if recipe.device.divides_model or recipe.asynchronous.is_on:
        raise UsageError(
            "AdaScale compares the gradients of parts of a batch, which no process has here whole",
            where="batch.lr_rule",
            fix="Use --batch.lr-rule linear, or train whole models in one process or by DDP.",
        )

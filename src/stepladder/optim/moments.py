"""Adam's two moments, for rules that use its step in a way of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepladder.optim.contract import Setup


def adam_defaults(setup: Setup) -> dict[str, float]:
    """Return the options of a group that `adam_step` reads, and the learning rate."""
    config = setup.config
    return {"lr": setup.lr, "beta1": config.beta1, "beta2": config.beta2, "eps": config.eps}


def adam_step(
    grad: Tensor,
    state: dict[str, Any],
    group: dict[str, Any],
    turned: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the step of Adam before the learning rate, and update a weight's state.

        m' = beta1 m + (1 - beta1) g,   v' = beta2 v + (1 - beta2) g^2
        step = m' / (1 - beta1^t) / (sqrt(v' / (1 - beta2^t)) + eps)

    Args:
        state: of the weight; empty before its first step.
        group: with beta1, beta2 and eps.
        turned: returns a tensor in another basis, of the same shape, in which v and the step are.

    Shapes: that of the weight.
    """
    beta1, beta2 = group["beta1"], group["beta2"]
    if not state:
        state |= {"step": 0.0}
        state |= {key: torch.zeros_like(grad) for key in ("exp_avg", "exp_avg_sq")}
    state["step"] += 1.0
    mean, square = state["exp_avg"].lerp_(grad, 1 - beta1), state["exp_avg_sq"]
    if turned is not None:
        grad, mean = turned(grad), turned(mean)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    below = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
    step: Tensor = (mean / (1 - beta1 ** state["step"])).div_(below)
    return step

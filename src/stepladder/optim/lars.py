"""LARS: SGD with a rate for each layer, by the norms of its weights and of its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, OwnOptimizer, Setup
from stepladder.optim.layerwise import norm_of, ratio_of
from stepladder.optim.matrices import IS_MATRIX, matrix_groups


class Lars(OwnOptimizer):
    """Take steps of SGD with momentum, in which a layer moves by a fixed share of its weights.

        rate = trust |w| / (|g| + decay |w|)
        v' = momentum v + rate (g + decay w),   w' = w - lr v'

    Biases and the scales of norms are not adapted, and do not decay. As in torch's SGD, the
    learning rate is not part of the momentum, so a schedule acts at once; in the paper it is.

    Source: You et al. 2017, "Large Batch Training of Convolutional Networks", Alg. 1,
    arXiv:1708.03888.
    """

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                decay = group["weight_decay"]
                step = weight.grad.add(weight, alpha=decay) if decay else weight.grad.clone()
                if group[IS_MATRIX]:
                    size = norm_of(weight)
                    below = norm_of(weight.grad) + decay * size
                    step.mul_(ratio_of(group["trust_coefficient"] * size, below))
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = step
                else:
                    state["momentum_buffer"].mul_(group["momentum"]).add_(step)
                weight.add_(state["momentum_buffer"], alpha=-group["lr"])


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    defaults = {
        "lr": setup.lr,
        "momentum": config.momentum,
        "trust_coefficient": config.trust_coefficient,
    }
    return Lars(setup.groups, defaults)


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    if weight.dim() < 2:
        return weight - lr * grad
    rate = config.trust_coefficient * weight.norm() / (grad.norm() + decay * weight.norm())
    moved: Tensor = weight - lr * rate * (grad + decay * weight)
    return moved


LARS = OptimizerSpec(
    name=OptimizerName.LARS,
    title="LARS",
    construct=_construct,
    first_step=_first_step,
    options=("momentum", "trust_coefficient"),
    usual_lr=4.0,
    most_lr=40.0,
    is_scale_free=True,
    batch_rule=BatchRule(lr_powers=(1.0, 0.5), follows_noise_scale=False, warmup_from=1.0),
    decay=Decay.L2,
    groups=matrix_groups,
    is_elementwise=False,
    has_layer_rates=True,
    state_numbers=lambda weight: weight.numel(),
)

"""LAMB: Adam with a rate for each layer, by the norms of its weights and of its step."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, OwnOptimizer, Setup
from stepladder.optim.layerwise import norm_of, ratio_of
from stepladder.optim.matrices import IS_MATRIX, matrix_groups
from stepladder.optim.moments import adam_defaults, adam_step


class Lamb(OwnOptimizer):
    """Take steps of AdamW, each of which moves a layer by the learning rate times its norm.

        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay w,   w' = w - lr |w| / |u| u

    Biases and the scales of norms take plain steps of Adam. The norm of the weights is not clipped,
    and gradients are not divided by their norm first, as some ports do; `clip_norm` can.

    Source: You et al. 2020, "Large Batch Optimization for Deep Learning", Alg. 2, arXiv:1904.00962.
    """

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                step = adam_step(weight.grad, self.state[weight], group)
                if group["weight_decay"]:
                    step.add_(weight, alpha=group["weight_decay"])
                if group[IS_MATRIX]:
                    step.mul_(ratio_of(norm_of(weight), norm_of(step)))
                weight.add_(step, alpha=-group["lr"])


def _construct(setup: Setup) -> torch.optim.Optimizer:
    return Lamb(setup.groups, adam_defaults(setup))


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    step: Tensor = grad / (grad.abs() + config.eps) + decay * weight
    ratio = weight.norm() / step.norm() if weight.dim() >= 2 else 1.0
    return weight - lr * ratio * step


LAMB = OptimizerSpec(
    name=OptimizerName.LAMB,
    title="LAMB",
    construct=_construct,
    first_step=_first_step,
    options=("beta1", "beta2", "eps"),
    usual_lr=3e-3,
    most_lr=0.1,
    is_scale_free=True,
    batch_rule=BatchRule(lr_powers=(0.5, 1.0), follows_noise_scale=False, warmup_from=1.0),
    decay=Decay.DECOUPLED,
    groups=matrix_groups,
    is_elementwise=False,
    has_layer_rates=True,
)

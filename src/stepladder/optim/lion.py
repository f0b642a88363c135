"""Lion: a step of fixed length, by the sign of an interpolated momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, OwnOptimizer, Setup


class Lion(OwnOptimizer):
    """Move each weight by the learning rate, in the direction of the momentum's sign.

    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Alg. 2,
    arXiv:2302.06675.
    """

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"]
                direction = torch.lerp(weight.grad, momentum, group["beta1"]).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(direction, alpha=-group["lr"])
                momentum.lerp_(weight.grad, 1 - group["beta2"])


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    defaults = {"lr": setup.lr, "beta1": config.beta1, "beta2": config.beta2}
    return Lion(setup.groups, defaults)


def _first_step(
    weight: Tensor,
    grad: Tensor,
    *,
    config: OptimizerConfig,  # noqa: ARG001
    lr: float,
    decay: float,
) -> Tensor:
    return weight * (1 - lr * decay) - lr * grad.sign()


LION = OptimizerSpec(
    name=OptimizerName.LION,
    title="Lion",
    construct=_construct,
    first_step=_first_step,
    options=("beta1", "beta2"),
    usual_lr=1e-4,
    most_lr=3e-3,
    is_scale_free=True,
    batch_rule=BatchRule(lr_powers=(0.5,), follows_noise_scale=False, warmup_from=None),
    decay=Decay.DECOUPLED,
    state_numbers=lambda weight: weight.numel(),
)

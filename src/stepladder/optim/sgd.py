"""SGD with momentum from torch."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, Setup


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    fused = bool(config.fused) or None  # None, not False: torch then uses the fastest on CUDA
    return torch.optim.SGD(setup.groups, lr=setup.lr, momentum=config.momentum, fused=fused)


def _first_step(
    weight: Tensor,
    grad: Tensor,
    *,
    config: OptimizerConfig,  # noqa: ARG001
    lr: float,
    decay: float,
) -> Tensor:
    return weight - lr * (grad + decay * weight)  # the momentum is initialized with the gradient


SGD = OptimizerSpec(
    name=OptimizerName.SGD,
    title="SGD",
    construct=_construct,
    first_step=_first_step,
    options=("momentum",),
    usual_lr=0.1,
    most_lr=1.0,
    is_scale_free=False,
    batch_rule=BatchRule(lr_powers=(1.0, 0.75, 0.5), follows_noise_scale=True, warmup_from=2.0),
    decay=Decay.L2,
    fused_on=frozenset({"cpu", "cuda"}),
)

"""Adam from torch, and what its family shares."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, Setup


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    betas, fused = (config.beta1, config.beta2), bool(config.fused) or None
    return torch.optim.Adam(setup.groups, lr=setup.lr, betas=betas, eps=config.eps, fused=fused)


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    grad = grad + decay * weight
    return weight - lr * grad / (grad.abs() + config.eps)


ADAM = OptimizerSpec(
    name=OptimizerName.ADAM,
    title="Adam",
    construct=_construct,
    first_step=_first_step,
    options=("beta1", "beta2", "eps"),
    usual_lr=1e-3,
    most_lr=0.1,
    is_scale_free=True,
    # If a small batch left the rate below its best, more is needed than the rule predicts: a head
    # on 732 photographs, batch 2 to 8 or 16, was better at 1.5 than at 1. The noise scale predicts
    # too little, see Zhang et al. 2019, arXiv:1907.04164.
    batch_rule=BatchRule(lr_powers=(0.5, 1.0, 1.5), follows_noise_scale=False, warmup_from=None),
    decay=Decay.L2,
    fused_on=frozenset({"cpu", "cuda"}),
)

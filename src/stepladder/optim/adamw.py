"""AdamW from torch: Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.adam import ADAM
from stepladder.optim.contract import Decay, Setup


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    betas, fused = (config.beta1, config.beta2), bool(config.fused) or None
    return torch.optim.AdamW(setup.groups, lr=setup.lr, betas=betas, eps=config.eps, fused=fused)


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    return weight * (1 - lr * decay) - lr * grad / (grad.abs() + config.eps)


ADAMW = replace(
    ADAM,
    name=OptimizerName.ADAMW,
    title="AdamW",
    construct=_construct,
    first_step=_first_step,
    decay=Decay.DECOUPLED,
)

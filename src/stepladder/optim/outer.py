"""The outer step of workers that take steps by themselves, along their mean change."""

from __future__ import annotations

import torch
from torch import Tensor

from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import AsynchronousConfig


def outer_optimizer(config: AsynchronousConfig, params: list[Tensor]) -> torch.optim.Optimizer:
    """Return what applies the mean change of workers that took steps by themselves.

    With a learning rate of 1 and no momentum, the new weights are the mean of the workers' weights.

    Source: Stich 2019, "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767;
    Douillard et al. 2023, "DiLoCo", arXiv:2311.08105.
    """
    if config.method is AsyncMethod.LOCAL_SGD:
        return torch.optim.SGD(params, lr=1.0)
    momentum = config.outer_momentum
    return torch.optim.SGD(params, lr=config.outer_lr, momentum=momentum, nesterov=momentum > 0)

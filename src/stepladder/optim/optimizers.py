"""Optimisers: torch's own and a fused NAdam, built from the config; decay only where it belongs.

`foreach` is left to torch: multi-tensor kernels on CUDA, a plain loop on the CPU, where they gain
nothing that lasts (NAdam on two cores: 0.74 of the time for 150 weights of 64x64, 1.05 of it for
150 of 256x256).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, assert_never

import torch
from torch import nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import UsageError
from stepladder.optim.nadam import NAdam


class HasParameters(Protocol):
    """A module, or the master copy of a module's weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Give each weight with its name."""
        ...


def build_optimizer(
    config: OptimizerConfig, model: HasParameters, *, lr: float
) -> torch.optim.Optimizer:
    """Build the optimiser over the weights that learn, in one group with decay and one without.

    Matrices and kernels (two dimensions or more) decay; biases and the scales of norms do not. What
    decay means follows the rule: SGD and Adam add decay x weight to the gradient (L2), AdamW and
    NAdam shrink the weight by lr x decay beside the step (decoupled).

    Raises:
        UsageError: if nothing learns.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """
    groups = _groups(config, model)
    betas = (config.beta1, config.beta2)
    fused = config.fused or None  # None, not False: torch then takes what is fastest on CUDA
    match config.name:
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, fused=fused)
        case OptimizerName.ADAM:
            return torch.optim.Adam(groups, lr=lr, betas=betas, eps=config.eps, fused=fused)
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=config.eps, fused=fused)
        case OptimizerName.NADAM:
            rule = NAdam if config.fused else torch.optim.NAdam
            return rule(groups, lr=lr, betas=betas, eps=config.eps, decoupled_weight_decay=True)
        case _:
            assert_never(config.name)


def has_fused(name: OptimizerName, device_type: str = "cpu") -> bool:
    """Say whether one kernel updates all weights by this rule on such a device.

    NAdam asked for fused on a GPU takes the step that it takes anyway.
    """
    return name is not OptimizerName.NADAM or device_type == "cpu"


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _groups(config: OptimizerConfig, model: HasParameters) -> list[dict[str, Any]]:
    learning = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    if not learning:
        raise UsageError("no weight of the model learns", fix="Use --train all, or unfreeze some.")
    # one group where nothing decays: each group costs a pass of Python over its weights
    has_decay = config.weight_decay > 0
    matrices = [(name, w) for name, w in learning if w.dim() >= 2 and has_decay]
    vectors = [(name, w) for name, w in learning if w.dim() < 2 or not has_decay]
    return [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if members
    ]

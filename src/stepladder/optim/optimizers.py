"""Optimisers built from the config, and what is done with any of them.

`foreach` is left to torch: multi-tensor kernels on CUDA, a plain loop on the CPU, where they gain
nothing that lasts (NAdam on two cores: 0.74 of the time for 150 weights of 64x64, 1.05 of it for
150 of 256x256).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import UsageError
from stepladder.optim.contract import HasParameters, OwnOptimizer, Setup
from stepladder.optim.table import spec_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def build_optimizer(
    config: OptimizerConfig,
    model: HasParameters,
    *,
    lr: float,
    process_group: ProcessGroup | None = None,
) -> torch.optim.Optimizer:
    """Build the optimiser over the weights that learn, in the groups of its spec.

    Raises:
        UsageError: if nothing learns, or the rule has no fused kernel on any device and one is
            asked for.
    """
    learning = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    if not learning:
        raise UsageError("no weight of the model learns", fix="Use --train all, or unfreeze some.")
    spec = spec_of(config.name)
    if config.fused and not spec.fused_on:
        raise UsageError(
            f"optimizer.fused: {spec.title} has no fused kernel", fix="Use --optimizer.no-fused."
        )
    return spec.construct(
        Setup(
            config=config,
            model=model,
            groups=spec.groups(config, learning),
            process_group=process_group,
            lr=lr,
        )
    )


def step_function(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """Return what takes a step with the least around it."""
    return optimizer.take_step if isinstance(optimizer, OwnOptimizer) else optimizer.step


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr

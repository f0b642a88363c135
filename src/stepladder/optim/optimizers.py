"""Build optimizers from the config, and functions for all of them.

`foreach` is left to torch: multi-tensor kernels on CUDA, a plain loop on the CPU, where they do not
help consistently (NAdam on two cores: 0.74 of the time for 150 weights of 64x64, 1.05 of it for 150
of 256x256).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from stepladder.config.recipe import OptimizerConfig
from stepladder.errors import UsageError
from stepladder.optim.contract import HasParameters, OwnOptimizer, Setup
from stepladder.optim.light_start import leave_compiler_out
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
    """Build the optimizer of the trainable weights, in the groups of its spec.

    Raises:
        UsageError: if no weight is trainable, or a fused kernel is requested and the optimizer has
            none.
    """
    learning = [(name, w) for name, w in model.named_parameters() if w.requires_grad]
    if not learning:
        raise UsageError(
            "there is nothing to train: all weights of the model are frozen (requires_grad=False)",
            fix="Type --train all, or set requires_grad=True for the weights to be trained.",
        )
    spec = spec_of(config.name)
    if config.fused and not spec.fused_on:
        raise UsageError(
            f"optimizer.fused: {spec.title} has no fused version, which updates all weights in one "
            "operation",
            fix="Use --optimizer.no-fused.",
        )
    leave_compiler_out()
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
    """Return the function that takes a step with the least overhead."""
    return optimizer.take_step if isinstance(optimizer, OwnOptimizer) else optimizer.step


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr

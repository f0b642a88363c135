"""Stages of a run: which weights are trained, and at which learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import BatchConfig
from stepladder.models.freezing import freeze, unfreeze
from stepladder.optim.schedule import base_lr
from stepladder.task.contract import Task


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage.

    Attributes:
        learns: HEAD or ALL.
        lr: its learning rate, before warm-up and decay.
    """

    learns: TrainMode
    lr: float


def stages_of(learns: TrainMode, batch: BatchConfig) -> tuple[Stage, ...]:
    """List the stages of a run: one, or two for head_then_all.

    Args:
        batch: the batch size and its learning rates.
    """
    lr = base_lr(batch)
    if learns is not TrainMode.HEAD_THEN_ALL:
        return (Stage(learns=learns, lr=lr),)
    second = base_lr(batch, is_second_stage=True)
    return (Stage(learns=TrainMode.HEAD, lr=lr), Stage(learns=TrainMode.ALL, lr=second))


def enter_stage(stage: Stage, task: Task, model: nn.Module) -> list[nn.Module]:
    """Freeze the weights that the stage does not train, and unfreeze the others.

    Returns:
        The frozen modules: the trunk if only the head is trained; none for a model without a head.
    """
    parts = task.split(model)
    if parts is None:
        return []
    trunk, _ = parts
    if stage.learns is TrainMode.HEAD:
        freeze(trunk)
        return [trunk]
    unfreeze(trunk)
    return []


def frozen_names(model: nn.Module, frozen: list[nn.Module]) -> set[str]:
    """List the state_dict names of parameters and buffers that cannot change while frozen."""
    modules = {id(module) for root in frozen for module in root.modules()}
    names: set[str] = set()
    for prefix, module in model.named_modules():
        if id(module) in modules:
            own = [*module._parameters, *module._buffers]
            names.update(f"{prefix}.{name}" if prefix else name for name in own)
    return names & set(model.state_dict())

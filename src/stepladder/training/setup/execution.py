"""How a recipe wants the model computed: folded, compiled, checkpointed. Asked first, then set."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.errors import ResourceError, UsageError
from stepladder.machine.compiler import compiler_missing
from stepladder.models.checkpointing import can_checkpoint, set_checkpointing
from stepladder.models.forwards import CompiledForward, FrozenForward, set_forward
from stepladder.task.contract import Task
from stepladder.training.stage import Stage


def require_execution(
    recipe: Recipe, task: Task, model: nn.Module, *, device: torch.device
) -> None:
    """Refuse options that the model, the stage or the machine does not go with.

    Raises:
        UsageError: if options contradict each other or do not fit the model.
        ResourceError: if there is no compiler.
    """
    if recipe.model.fold_batchnorm:
        _require_foldable(recipe, task, model)
    if recipe.device.gradient_checkpointing:
        _require_checkpoints(recipe, task, model)
    missing = compiler_missing(device.type) if recipe.device.compile else None
    if missing is not None:
        raise ResourceError(
            f"torch.compile needs {missing}, and there is none here",
            where="device.compile",
            fix="Install one (apt-get install g++), or leave device.compile out.",
        )


def set_execution(recipe: Recipe, stage: Stage, task: Task, model: nn.Module) -> None:
    """Let the model compute as the recipe says in a stage; its tensors and names stay as they are.

    While the trunk is frozen, it alone is folded and compiled: the head is small, and the trunk's
    code then serves training, validation and features alike. Else the whole model is compiled.
    """
    parts = task.split(model)
    trunk = parts[0] if parts is not None and stage.learns is TrainMode.HEAD else None
    is_compiled = recipe.device.compile
    if parts is not None:
        is_folded = recipe.model.fold_batchnorm
        _set_frozen(parts[0], trunk is not None, is_folded=is_folded, is_compiled=is_compiled)
    set_forward(model, CompiledForward(model) if is_compiled and trunk is None else None)
    if recipe.device.gradient_checkpointing:
        set_checkpointing(model, trunk is None)


def _set_frozen(trunk: nn.Module, is_frozen: bool, *, is_folded: bool, is_compiled: bool) -> None:
    if not (is_frozen and (is_folded or is_compiled)):
        set_forward(trunk, None)
        return
    there = vars(trunk).get("forward")
    wanted = (is_folded, is_compiled)
    if isinstance(there, FrozenForward) and (there.is_folded, there.is_compiled) == wanted:
        return  # what it made, such as compiled code, serves on
    set_forward(trunk, FrozenForward(trunk, is_folded, is_compiled))


def _require_foldable(recipe: Recipe, task: Task, model: nn.Module) -> None:
    parts = task.split(model)
    if parts is None:
        raise UsageError(
            "model.fold_batchnorm: the model has no trunk, or the Task does not say which it is",
            where=type(task).__name__,
            fix="Give the Task a split(model), or leave model.fold_batchnorm out.",
        )
    if recipe.train is TrainMode.ALL:
        raise UsageError(
            "model.fold_batchnorm: the trunk learns (train: all)",
            why="The statistics of its BatchNorm move with each step, so they cannot be folded.",
            fix="Type --train head, or leave model.fold_batchnorm out.",
        )
    if not any(isinstance(module, nn.BatchNorm2d) for module in parts[0].modules()):
        raise UsageError(
            "model.fold_batchnorm: the trunk has no BatchNorm2d layer",
            fix="Leave model.fold_batchnorm out.",
        )


def _require_checkpoints(recipe: Recipe, task: Task, model: nn.Module) -> None:
    if recipe.train is TrainMode.HEAD and task.split(model) is not None:
        raise UsageError(
            "device.gradient_checkpointing: the trunk is frozen (train: head)",
            why="No activation of it is kept for a backward pass, so there is nothing to save.",
            fix="Type --train all, or leave device.gradient_checkpointing out.",
        )
    if not can_checkpoint(model):
        raise UsageError(
            f"device.gradient_checkpointing: {type(model).__name__} has no method for it",
            where=type(task).__name__,
            fix="Give the model a method set_grad_checkpointing(enable), or leave the option out.",
        )
    try:  # a model that cannot says so here, before anything of a run is written
        set_checkpointing(model, True)
    except (AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"device.gradient_checkpointing: {type(model).__name__} says no ({error})",
            fix="Leave device.gradient_checkpointing out for this model.",
        ) from error
    set_checkpointing(model, False)

"""Whether a training fits into the memory of a device, before its first step.

Without it, a process that needs more than a limit of the system is killed, without a word.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.errors import ResourceError
from stepladder.machine import available_memory_bytes
from stepladder.models.features import evaluating
from stepladder.optim.table import spec_of
from stepladder.parallel.divided.choice import Kind, choose, size_words
from stepladder.parallel.divided.size import model_size
from stepladder.parallel.world import ALONE, World
from stepladder.records.model_size import ModelSize
from stepladder.task.contract import Task
from stepladder.training.randomness import random_state_kept
from stepladder.training.setup.build import MEMORY_FORMATS, Sources
from stepladder.training.training import stand_in

_SMALL: Final = 1 / 8
"""Share of the free memory that gradients and the optimizer's state may need without a look."""
_MOST_DEVICES: Final = 64
_OPTIONS: Final = {
    Kind.DATA: "",
    Kind.SHARDED: " --device.sharded",
    Kind.TENSOR: " --device.tensor-parallel {num}",
    Kind.PIPELINE: " --device.pipeline-stages {num}",
}


def size_of_job(recipe: Recipe, task: Task, model: nn.Module, example: Batch) -> ModelSize:
    """Return what decides how a model is divided; nothing of it changes.

    Args:
        example: of a few examples, on the device.
    """
    with random_state_kept(), evaluating(model):
        return model_size(
            model,
            lambda: task.loss(model, example),
            num_examples=example.ids.numel(),
            state_numbers=spec_of(recipe.optimizer.name).state_numbers,
        )


def require_memory(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    sources: Sources,
    *,
    device: torch.device,
    world: World = ALONE,
) -> str | None:
    """Check that gradients, the optimizer's state and activations fit beside the model.

    Returns:
        A warning if they may not.

    Raises:
        ResourceError: if they cannot, even without activations.
    """
    free = _free_bytes(device) / (world.local_size if device.type == "cpu" else 1)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    numbers = spec_of(recipe.optimizer.name).state_numbers
    grads = sum(weight.nbytes for weight in trained)
    states = sum(numbers(weight) * weight.element_size() for weight in trained)
    parts = world.size if recipe.device.divides_model else 1
    is_head = recipe.train is TrainMode.HEAD and task.split(model) is not None
    is_small = (grads + states) / parts <= _SMALL * free
    if is_small or is_head or isinstance(sources.train, ArrivalSource):
        return None
    example = stand_in(sources.train, device, MEMORY_FORMATS[recipe.device.memory_format])
    size = size_of_job(recipe, task, model, example)
    batch = recipe.batch.global_batch_size
    own = -(-batch // world.size)
    held = min(own, recipe.batch.micro_batch_size or own) * size.kept
    needed = (grads + states) / parts
    if needed + held <= free:
        return None
    what = (
        f"a step needs {size_words(needed + held)} on {_device_words(device)} beside the model, of "
        f"which {size_words(free)} are free: gradients {size_words(grads / parts)}, optimizer "
        f"{size_words(states / parts)}, activations {size_words(held)}"
    )
    fix = _fix(size, free, recipe, device=device, now=world.size)
    if needed > free:
        raise ResourceError(what, where=type(task).__name__, fix=fix)
    return f"{what}. {fix}"


def _fix(size: ModelSize, free: float, recipe: Recipe, *, device: torch.device, now: int) -> str:
    """Return the least devices among which the training fits, and how they share it."""
    memory = free + size.weights  # the model is there already
    batch, num = recipe.batch.global_batch_size, 2 * now
    while num <= min(_MOST_DEVICES, batch):
        kind = choose(size, devices=num, batch=batch, memory=memory).kind
        if kind is not None:
            options = _OPTIONS[kind].format(num=num)
            if kind is not Kind.DATA and recipe.train is not TrainMode.ALL:
                options = f" --train all{options}"
            if device.type == "cuda":
                return f"Divide it among {num} GPUs: type --devices {num}{options}."
            return (
                f"Divide it among {num} machines of this size: start it on each with{options} "
                "(docs/devices.md, docs/parallelism.md)."
                if options
                else f"Divide it among {num} machines of this size (docs/devices.md)."
            )
        num *= 2
    return "Use a smaller model, or a smaller batch: --batch.micro-batch-size 1."


def _device_words(device: torch.device) -> str:
    return "this GPU" if device.type == "cuda" else "this machine"


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(available_memory_bytes())

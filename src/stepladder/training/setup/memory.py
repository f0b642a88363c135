"""Whether a training fits into the memory of a device, before its first step.

Without it, a process that needs more than a limit of the system is killed, without a word.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
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
from stepladder.parallel.divided.choice import Kind, choose, memory_of, size_words
from stepladder.parallel.divided.size import model_size
from stepladder.parallel.world import ALONE, World
from stepladder.records.model_size import ModelSize
from stepladder.task.contract import Task
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.randomness import random_state_kept
from stepladder.training.setup.build import MEMORY_FORMATS, Sources
from stepladder.training.step import autocast

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
        example: of two examples, on the device, which may be the same.
    """
    device = next(model.parameters()).device

    def run(num: int) -> Any:
        with autocast(device, recipe.device.precision):
            return task.loss(model, example.rows(slice(0, num)))

    numbers = spec_of(recipe.optimizer.name).state_numbers
    with random_state_kept(), evaluating(model):
        return model_size(model, run, state_numbers=numbers)


def two_examples(recipe: Recipe, sources: Sources, device: torch.device) -> Batch:
    """Return an example twice, on the device."""
    rows = read_batch(sources.train, np.array([0, 0]))
    return rows.to(device, memory_format=MEMORY_FORMATS[recipe.device.memory_format])


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
    num = max(world.size, recipe.device.count)
    if recipe.device.divides_model and num == 1:
        return None
    # processes of one machine share its memory; a world of one may plan for several
    sharing = 1 if device.type == "cuda" else num if world.is_alone else world.local_size
    free = free_bytes(device) / sharing
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    numbers = spec_of(recipe.optimizer.name).state_numbers
    grads = sum(weight.nbytes for weight in trained)
    states = sum(numbers(weight) * weight.element_size() for weight in trained)
    is_head = recipe.train is TrainMode.HEAD and task.split(model) is not None
    is_small = (grads + states) / num <= _SMALL * free
    if is_small or is_head or isinstance(sources.train, ArrivalSource):
        return None
    size = size_of_job(recipe, task, model, two_examples(recipe, sources, device))
    part = _part(recipe, size, num)
    held = _held(recipe, size, num)
    needed = (grads + states) * part
    if needed + held <= free:
        return None
    where = "this GPU" if device.type == "cuda" else "this machine"
    if sharing > 1:
        where = f"each of {sharing} processes of {where}"
    what = (
        f"a step needs {size_words(needed + held)} on {where} beside the model, of which "
        f"{size_words(free)} are free: gradients {size_words(grads * part)}, optimizer "
        f"{size_words(states * part)}, activations {size_words(held)}"
    )
    fix = _fix(size, free, recipe, device=device, now=num)
    if needed > free:
        raise ResourceError(
            what,
            where=type(task).__name__,
            fix=fix or "Use a smaller model, or an optimizer with less state: --optimizer.name sgd",
        )
    return f"{what}. {fix or 'Compute fewer examples at once: --batch.micro-batch-size 1.'}"


def _part(recipe: Recipe, size: ModelSize, num: int) -> float:
    """Return the share of gradients and states that a device has."""
    config = recipe.device
    if config.division == "pipeline_stages":
        return 1 / config.pipeline_stages
    if config.division == "tensor_parallel":
        share = size.divided / max(1, size.weights)
        return (1 - share + share / config.tensor_parallel) * config.tensor_parallel / num
    return 1 / num if config.sharded else 1.0


def _held(recipe: Recipe, size: ModelSize, num: int) -> float:
    """Return the bytes of activations that a device keeps."""
    config, batch = recipe.device, recipe.batch
    parts = max(config.tensor_parallel, config.pipeline_stages)
    own = -(-batch.global_batch_size // num)
    at_once = min(own, batch.micro_batch_size or own) * parts  # of the devices that share a model
    kind = {"tensor_parallel": Kind.TENSOR, "pipeline_stages": Kind.PIPELINE}.get(
        config.division or "", Kind.DATA
    )
    empty = replace(size, weights=0, trained=0, states=0, copies=0)
    needs = memory_of(empty, devices=parts, batch=at_once)
    return needs.get(kind, at_once * size.kept) + size.copies


def _fix(
    size: ModelSize, free: float, recipe: Recipe, *, device: torch.device, now: int
) -> str | None:
    """Return the least devices among which the training fits, and how they share it."""
    memory = free + size.weights  # the model is there already
    batch, micro = recipe.batch.global_batch_size, recipe.batch.micro_batch_size
    num = 2 * now
    while num <= _MOST_DEVICES:
        at_once = None if micro is None else micro * num
        found = choose(size, devices=num, batch=batch, memory=memory, at_once=at_once).kind
        if found is not None:
            options = _OPTIONS[found].format(num=num)
            if found is not Kind.DATA and recipe.train is not TrainMode.ALL:
                options = f" --train all{options}"
            if device.type == "cuda":
                return f"Divide it among {num} GPUs: type --devices {num}{options}."
            how = f": start it on each with{options}" if options else ""
            pages = "docs/devices.md, docs/parallelism.md"
            return f"Divide it among {num} machines of this size{how} ({pages})."
        num *= 2
    return None


def free_bytes(device: torch.device) -> float:
    """Return the memory that a step can use; torch's cache of freed memory is free, too."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + cached)
    return float(available_memory_bytes())

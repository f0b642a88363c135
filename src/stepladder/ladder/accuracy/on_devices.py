"""Do several devices compute the same step as one: the update of all weights, compared."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName, Precision, Where
from stepladder.config.recipe import OptimizerConfig, Recipe
from stepladder.ladder.accuracy.exactness import MAX_DIFFERENCE, MOST_EXAMPLES, drop_nothing
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import task_of_rank
from stepladder.measuring.subject import Subject, open_subject
from stepladder.models.sharded_tensors import whole
from stepladder.models.tf32 import without_tf32
from stepladder.parallel.fleet import Fleet
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.task.load import name_for_others
from stepladder.training.setup.build import Sources, open_device

_LEAST_FRAC: Final = 1e-2
"""Smallest scale of a weight's update, relative to the largest one."""

Updates = dict[str, Tensor]
"""What one step of SGD with learning rate 1 adds to each trained weight, on the CPU."""


def check_on_devices(
    recipe: Recipe,
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    folder: Path,
    copies: Path,
    fleet: Fleet | None = None,
) -> str:
    """Return how exactly several devices compute the same step as one, such as "same to 1e-6".

    Compares a step of plain SGD in fp32 on the first examples, without dropout, which is random on
    each device.

    Args:
        recipe: on several devices.
        folder: a private one.
        copies: folder with decoded copies of the store.
        fleet: other hosts, if any.

    Raises:
        TrialFailed: if the updates differ by more than rounding.
        ResourceError: if a process ended.
    """
    comparable = _comparable(recipe)
    alone = replace(comparable, device=replace(comparable.device, count=1))
    expected = first_update(alone, task, sources, device=device)
    arguments = {"recipe": comparable, "task": name_for_others(task), "copies": copies}
    is_cuda = device.type == "cuda"
    num, there = recipe.device.count, folder / "first_step"
    with Team(num, _Member, arguments, is_cuda=is_cuda, folder=there, fleet=fleet) as team:
        found: Updates = team.ask("update")[0]
    return _difference(expected, found)


def first_update(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, world: World = ALONE
) -> Updates:
    """Take one step, and return what it adds to each trained weight."""
    opened = open_subject(recipe, task, sources, device=device, world=world)
    with without_tf32(device), opened as subject:
        drop_nothing(subject.model)
        subject.lr = 1.0
        before = _whole_weights(subject)
        reader = subject.reader()
        batches = reader.endless()
        try:
            subject.step_on(batches)
        finally:
            batches.close()
            reader.close()
        return {name: weight - before[name] for name, weight in _whole_weights(subject).items()}


def _whole_weights(subject: Subject) -> Updates:
    """Return copies of the trained weights on the host; of a divided model, a collective."""
    trained = {
        name: weight.detach()
        for name, weight in subject.model.named_parameters()
        if weight.requires_grad
    }
    divided = subject.parts.divided
    marked = trained if divided is None else divided.mark(trained)
    return {name: whole(weight).to("cpu", copy=True) for name, weight in marked.items()}


class _Member:
    """One of the devices, in a process of its own."""

    def __init__(self, world: World, *, recipe: Recipe, task: str, copies: Path) -> None:
        self._world, self._recipe = world, recipe
        self._task, self._sources = task_of_rank(recipe, task, copies=copies)

    def update(self) -> Updates | None:
        """Return the update, on rank 0."""
        found = first_update(
            self._recipe,
            self._task,
            self._sources,
            device=open_device(self._recipe, local_rank=self._world.local_rank),
            world=self._world,
        )
        return found if self._world.is_main else None


def _comparable(recipe: Recipe) -> Recipe:
    size = max(recipe.device.count, min(recipe.batch.global_batch_size, MOST_EXAMPLES))
    plain = OptimizerConfig(name=OptimizerName.SGD, momentum=0.0, weight_decay=0.0, fused=False)
    return replace(
        recipe,
        data=replace(recipe.data, where=Where.STREAM),
        features=replace(recipe.features, cached=False),
        batch=replace(recipe.batch, global_batch_size=size, micro_batch_size=None),
        optimizer=plain,
        device=replace(recipe.device, precision=Precision.FP32, compile=False),
    )


def _difference(expected: Updates, found: Updates) -> str:
    """Return the largest difference in words.

    Raises:
        TrialFailed: if it is more than rounding.
    """
    least = _LEAST_FRAC * max(float(update.abs().max()) for update in expected.values())
    largest = 0.0
    for name, update in expected.items():
        scale = max(float(update.abs().max()), least)
        apart = float((update - found[name]).abs().max())
        largest = max(largest, apart / scale if scale else apart)
    if largest == 0:
        return "equal"
    if not largest <= MAX_DIFFERENCE:
        raise TrialFailed(f"different results: updates of weights differ by {largest:.1g}")
    return f"same to 1e{math.ceil(math.log10(largest))}"

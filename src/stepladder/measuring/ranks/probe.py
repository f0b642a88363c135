"""What several devices could gain: their steps on a part of the batch each, and an exchange."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from stepladder.config.recipe import Recipe
from stepladder.measuring.blocks.timing import wait_for
from stepladder.measuring.ranks.exchange import exchange_s, median_s
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import task_of_rank
from stepladder.measuring.subject import open_subject
from stepladder.measuring.sweep import fit_line
from stepladder.parallel.fleet import Fleet
from stepladder.parallel.world import World
from stepladder.records.profile import Devices
from stepladder.task.contract import Task
from stepladder.task.load import name_for_others
from stepladder.training.setup.build import open_device

_SMALL_BYTES: Final = 4096
_MOST_BYTES: Final = 64 * 1024**2
_STEP_BUDGET_S: Final = 2.0


def probe_devices(
    num: int,
    recipe: Recipe,
    task: Task,
    *,
    device: torch.device,
    folder: Path,
    copies: Path,
    exchanged_bytes: int,
    fleet: Fleet | None = None,
) -> Devices:
    """Start processes for several devices, and time them.

    Args:
        num: of devices.
        recipe: on one device.
        folder: a private one.
        copies: folder with decoded copies of the store.
        exchanged_bytes: of the gradients of a step.
        fleet: other hosts, if any.

    Raises:
        UsageError: if other processes cannot make the task.
        ResourceError: if one of them ends.
    """
    arguments = {"recipe": recipe, "task": name_for_others(task), "copies": copies}
    is_cuda = device.type == "cuda"
    with Team(
        num, _Member, arguments, is_cuda=is_cuda, folder=folder / "probe", fleet=fleet
    ) as team:
        share_step_s = max(team.ask("share_step_s"), key=lambda one: one or 0.0)
        sizes = (_SMALL_BYTES, max(2 * _SMALL_BYTES, min(exchanged_bytes, _MOST_BYTES)))
        seconds = [max(team.ask("exchange_s", num_bytes=size)) for size in sizes]
        fixed_s, byte_s = fit_line(sizes, seconds)
        return Devices(
            num=num,
            start_s=team.start_s,
            share_step_s=share_step_s,
            exchange_fixed_s=fixed_s,
            exchange_byte_s=byte_s,
        )


class _Member:
    """One of the devices, in a process of its own."""

    def __init__(self, world: World, *, recipe: Recipe, task: str, copies: Path) -> None:
        self._world, self._recipe = world, recipe
        self._task, self._sources = task_of_rank(recipe, task, copies=copies)
        self._device = open_device(recipe, local_rank=world.local_rank)

    def share_step_s(self) -> float | None:
        """Return the seconds of a step on this device's part of a batch; None: it is too small."""
        size = self._recipe.batch.global_batch_size // self._world.size
        batch = replace(self._recipe.batch, global_batch_size=max(1, size))
        recipe = replace(self._recipe, batch=batch)
        with open_subject(recipe, self._task, self._sources, device=self._device) as subject:
            if size < subject.min_batch_size:
                return None
            moved = subject.to_device(subject.batch_of(size))

            def step() -> None:
                subject.parts.step(moved, step=subject.num_steps, lr=0.0)
                wait_for(self._device)

            self._world.barrier()
            return median_s(step, _STEP_BUDGET_S, self._world)

    def exchange_s(self, num_bytes: int) -> float:
        """Return the seconds to add up gradients over all devices."""
        return exchange_s(self._world, self._device, num_bytes)

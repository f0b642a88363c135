"""A recipe on several devices, ready for timing: each of them runs its part of a `Workload`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from stepladder.config.recipe import Recipe
from stepladder.measuring.blocks.block import BlockTimes, Plan
from stepladder.measuring.blocks.workload import Workload
from stepladder.measuring.ranks.team import Team
from stepladder.parallel.fleet import Fleet
from stepladder.parallel.world import World
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.task.load import load_task, name_for_others
from stepladder.training.ranks.follower import require_parallel
from stepladder.training.setup.build import Sources, open_device
from stepladder.training.setup.table_version import open_at_version

START: Final = "start"
"""Name of the one-time work of starting the processes of several devices."""


def open_workload(
    recipe: Recipe,
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    cache: Path,
    copies: Path,
    fleet: Fleet | None = None,
) -> AnyWorkload:
    """Return the workload of a recipe, on as many devices as it asks for; the caller closes it.

    Args:
        sources: as the recipe reads them.
        cache: folder for temporary files; empty, or does not exist.
        copies: folder with the decoded copies that `sources` may be.
        fleet: other hosts, if any.

    Raises:
        UsageError: if other processes cannot make the task.
        ResourceError: if one of them ends.
    """
    if recipe.device.count == 1:
        return Workload(recipe, task, sources, device=device, cache=cache)
    return RanksWorkload(recipe, task, device=device, cache=cache, copies=copies, fleet=fleet)


class RanksWorkload:
    """A `Workload` that runs on several devices, one process each; has the same interface.

    Args:
        recipe: with `device.count` devices.
        device: that of this process; the others are of the same kind.
        cache, copies, fleet: see `open_workload`.

    Attributes:
        plan, pilot, one_time_s: see `Workload`; starting the processes is one-time work, too.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        *,
        device: torch.device,
        cache: Path,
        copies: Path,
        fleet: Fleet | None = None,
    ) -> None:
        self.plan = Plan()
        self.pilot = BlockTimes(step_s=0.0, num_steps=0, validation_s=0.0)
        self.is_compiled = recipe.device.compile
        self.planned_s = 0.0
        self._team = Team(
            recipe.device.count,
            _Member,
            {
                "recipe": recipe,
                "task": name_for_others(task),
                "cache": cache,
                "copies": copies,
            },
            is_cuda=device.type == "cuda",
            folder=cache,
            fleet=fleet,
        )
        self.one_time_s: dict[str, float] = {START: self._team.start_s}

    def warm_up(self, min_s: float) -> None:
        """Take the first steps on all devices, see `Workload.warm_up`."""
        plan, self.pilot, self.planned_s, one_time_s = self._team.ask(
            "warm_up", min_s=min_s, plan=self.plan
        )[0]
        self.plan = plan
        self.one_time_s.update(one_time_s)

    def block(self, min_s: float, *, like: BlockTimes | None = None) -> BlockTimes:
        """Time a block on all devices, see `Workload.block`.

        Raises:
            DivergedError: if the loss is not finite.
            ResourceError: if a process ended.
        """
        if self.plan.num_steps == 0:
            self.warm_up(min_s)
        times: BlockTimes = self._team.ask("block", min_s=min_s, plan=self.plan, like=like)[0]
        return times

    def close(self) -> None:
        """End the processes."""
        self._team.close()


AnyWorkload = Workload | RanksWorkload


def task_of_rank(recipe: Recipe, name: str, *, copies: Path) -> tuple[Task, Sources]:
    """Return a task and its data, in the process of a device.

    Args:
        name: see `name_for_others`.
        copies: folder with decoded copies of the store.
    """
    task = load_task(name, store=recipe.data.store, recipe=recipe)
    if isinstance(task, ImageClassification):
        task = task.as_read_by(recipe, copies=copies)
    return task, open_at_version(task, recipe.data.table_version)


class _Member:
    """One device of a workload, in a process of its own."""

    def __init__(
        self, world: World, *, recipe: Recipe, task: str, cache: Path, copies: Path
    ) -> None:
        made, sources = task_of_rank(recipe, task, copies=copies)
        require_parallel(recipe, sources, world)
        self._workload = Workload(
            recipe,
            made,
            sources,
            device=open_device(recipe, local_rank=world.local_rank),
            cache=cache / f"rank-{world.rank}",
            world=world,
        )

    def warm_up(self, min_s: float, plan: Plan) -> tuple[Plan, BlockTimes, float, dict[str, Any]]:
        workload = self._workload
        workload.plan = plan
        workload.warm_up(min_s)
        return workload.plan, workload.pilot, workload.planned_s, workload.one_time_s

    def block(self, min_s: float, plan: Plan, like: BlockTimes | None) -> BlockTimes:
        self._workload.plan = plan
        times = self._workload.block(min_s, like=like)
        return replace(times, phases_s=dict(times.phases_s))  # pickled

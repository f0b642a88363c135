"""What several devices could gain: their steps on a part of the batch each, and an exchange."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from stepladder.config.recipe import Recipe
from stepladder.measuring.blocks.timing import wait_for
from stepladder.measuring.blocks.workload import head_of
from stepladder.measuring.ranks.exchange import exchange_s, times_of
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import task_of_rank
from stepladder.measuring.subject import open_subject
from stepladder.measuring.sweep import fit_line
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.probe import measure_fit
from stepladder.parallel.collectives.transport import GlooTransport
from stepladder.parallel.fleet import Fleet
from stepladder.parallel.world import World
from stepladder.records.collectives import Fit
from stepladder.records.profile import Devices
from stepladder.task.contract import Task
from stepladder.task.load import name_for_others
from stepladder.training.setup.build import open_device

_FOREVER: Final = timedelta(days=7)
_SMALL_BYTES: Final = 4096
_MOST_BYTES: Final = 64 * 1024**2
_STEP_BUDGET_S: Final = 2.0
_MOST_STEPS: Final = 200
_WARM_UP: Final = 2


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
    recipe = replace(recipe, device=replace(recipe.device, count=num))
    arguments = {"recipe": recipe, "task": name_for_others(task), "copies": copies}
    is_cuda = device.type == "cuda"
    with Team(
        num, _Member, arguments, is_cuda=is_cuda, folder=folder / "probe", fleet=fleet
    ) as team:
        shares: list[Share | None] = team.ask("share")
        known = [share for share in shares if share is not None]
        slowest = max(known, default=None, key=lambda share: share.step_s)
        sizes = (_SMALL_BYTES, max(2 * _SMALL_BYTES, min(exchanged_bytes, _MOST_BYTES)))
        seconds = [max(team.ask("exchange_s", num_bytes=size)) for size in sizes]
        fixed_s, byte_s = fit_line(sizes, seconds)
        return Devices(
            num=num,
            start_s=team.start_s,
            share_step_s=None if slowest is None else slowest.step_s,
            share_wait_s=0.0 if slowest is None else slowest.wait_s,
            share_delay_s=delay_s(known),
            exchange_fixed_s=fixed_s,
            exchange_byte_s=byte_s,
            fit=None if is_cuda else team.ask("fit")[0],
        )


class Share(NamedTuple):
    """A step of one device on its part of a batch.

    Attributes:
        step_s: seconds until the slowest device has taken it, without the exchange of gradients.
        wait_s: of these, waiting for the batch.
        own_s: seconds until this device itself has taken it.
    """

    step_s: float
    wait_s: float
    own_s: float


def delay_s(shares: Sequence[Share]) -> float:
    """Return the delays of a step by chance: those of the device that is slowest on average."""
    if not shares:
        return 0.0
    mean_s = sum(share.step_s for share in shares) / len(shares)
    return max(0.0, mean_s - max(share.own_s for share in shares))


class _Member:
    """One of the devices, in a process of its own."""

    def __init__(self, world: World, *, recipe: Recipe, task: str, copies: Path) -> None:
        self._world, self._recipe = world, recipe
        self._task, self._sources = task_of_rank(recipe, task, copies=copies)
        self._device = open_device(recipe, local_rank=world.local_rank)

    def share(self) -> Share | None:
        """Time steps on this device's part of each batch; None: it is too small for this model."""
        world, device = self._world, self._device
        least = self._recipe.batch.global_batch_size // world.size
        with (
            open_subject(
                self._recipe, self._task, self._sources, device=device, world=world
            ) as base,
            ExitStack() as closing,
        ):
            subject = head_of(base) if self._recipe.features.cached else base
            if least < subject.min_batch_size:
                return None
            subject.lr = 0.0
            reader = subject.reader()
            closing.callback(reader.close)
            batches = reader.endless()
            closing.callback(batches.close)
            meet = torch.zeros(1, device=device)
            waits_s: list[float] = []
            own_s: list[float] = []
            fractions: list[float] = []  # of a full step

            def step() -> None:
                before_s, began_s = reader.stats.wait_s, time.perf_counter()
                batch = subject.step_on(batches)
                wait_for(device)
                own_s.append(time.perf_counter() - began_s)
                dist.all_reduce(meet)
                wait_for(device)
                waits_s.append(reader.stats.wait_s - before_s)
                num = subject.num_in_step(subject.num_steps - 1, batch)
                fractions.append(num / subject.batch_size)

            closing.enter_context(subject.parts.step.apart())
            world.barrier()
            for _ in range(_WARM_UP):
                step()
            steps_s = times_of(step, _STEP_BUDGET_S, world, most=_MOST_STEPS)
            num = len(steps_s)
            full = sum(fractions[-num:])
            return Share(*(sum(times[-num:]) / full for times in (steps_s, waits_s, own_s)))

    def exchange_s(self, num_bytes: int) -> float:
        """Return the seconds to add up gradients over all devices."""
        return exchange_s(self._world, self._device, num_bytes, are_gradients=True)

    def fit(self) -> Fit:
        """Return the cost of messages between all devices."""
        return measure_fit(Executor(GlooTransport.open(_FOREVER)), self._world)

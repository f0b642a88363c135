"""Time the steps of several devices with one thing removed at a time, to see what each costs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple

from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.errors import UsageError
from stepladder.machine import num_cores
from stepladder.measuring.blocks.timing import wait_for
from stepladder.measuring.blocks.workload import head_of
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import task_of_rank
from stepladder.measuring.reading.validation import hold_batches, open_validation
from stepladder.measuring.saving import SaveTimes, measure_saves
from stepladder.measuring.subject import open_subject
from stepladder.parallel.join import host_name
from stepladder.parallel.world import ALONE, World
from stepladder.records.scaling import DeviceUse, Part
from stepladder.task.contract import Task
from stepladder.task.load import name_for_others
from stepladder.training.clock import Phase
from stepladder.training.evaluate import evaluate
from stepladder.training.loop import fit
from stepladder.training.ranks.follower import require_parallel
from stepladder.training.setup.build import open_device
from stepladder.training.stage import stages_of
from stepladder.training.stopping import ValidationRule
from stepladder.training.training import Training, augment_part

NUM_ROUNDS: Final = 8
_MIN_ROUNDS: Final = 3
_MIN_STEPS: Final = 3
_MOST_STEPS: Final = 400
_SKIPPED: Final = 2  # steps of the loop, whose reader begins without prefetched batches
_WINDOW_S: Final = 0.05  # of the use of a device
_VALIDATION_S: Final = 0.5
_WARM_UP: Final = 3


class Arm(StrEnum):
    """A kind of steps; each one differs from another one by one thing."""

    LOOP = "loop"
    """The training loop: reads, exchanges, and decides what to do after each step."""
    READ = "read"
    """Steps that read and exchange."""
    REPEATED = "repeated"
    """Steps on one repeated batch that exchange."""
    APART = "apart"
    """The same on all devices at once, without an exchange."""
    PART = "part"
    """Steps of one device on its part of the batch, while the others rest."""
    WHOLE = "whole"
    """Steps of one device on the whole batch, while the others rest."""


_OF_ONE: Final = (Arm.PART, Arm.WHOLE)
_OF_ONE_DEVICE: Final = (Arm.LOOP, Arm.READ, Arm.WHOLE)  # alone, the others are the same


class Block(NamedTuple):
    """One block of steps on one rank.

    Attributes:
        step_s: seconds of a full step.
        steps_s: each single step; empty if they are queued on a device.
        use: end and busy share of windows, in seconds since the start of the block.
    """

    step_s: float
    steps_s: tuple[float, ...] = ()
    use: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """What the steps of several devices cost with one thing removed at a time.

    Attributes:
        num: of devices.
        arms_s: seconds of a step, by arm and block; of `apart`, of the slowest rank of each step.
        fastest_s: seconds of a step of the fastest rank of `apart`, by block.
        start_s: starting the processes until all have met; 0 for one device.
        validation_s: one validation; 0 without one.
        saves: of a checkpoint; None: not measured.
        num_train: examples of an epoch.
        exchanged_bytes: of the gradients of a step.
        use: of each device, while the loop ran.
    """

    num: int
    arms_s: Mapping[Arm, tuple[float, ...]]
    fastest_s: tuple[float, ...]
    start_s: float
    validation_s: float
    saves: SaveTimes | None
    num_train: int
    exchanged_bytes: int
    use: tuple[DeviceUse, ...]

    @property
    def step_s(self) -> float:
        """A step of the training loop."""
        return median(self.arms_s[Arm.LOOP])

    def parts_s(self) -> dict[Part, float]:
        """Return the parts of a step, which add up to `step_s`; only `unexplained` may be below 0.

        What one device needs for the whole batch, divided by the devices, is compute.
        """
        middle = {arm: self._middle_s(seconds) for arm, seconds in self.arms_s.items()}
        whole_s = middle[Arm.WHOLE]
        levels = {Part.COMPUTE: whole_s / self.num}
        if self.num > 1:
            together_s = middle[Arm.REPEATED]  # contains what is removed in the others
            levels |= {
                Part.MICRO_BATCH: min(middle[Arm.PART], together_s),
                Part.CONTENTION: min(self._middle_s(self.fastest_s), together_s),
                Part.STRAGGLERS: min(middle[Arm.APART], together_s),
                Part.COMMUNICATION: together_s,
            }
        levels[Part.DATA] = middle[Arm.READ]
        parts, reached_s = {}, 0.0
        for part, level_s in levels.items():  # one below an earlier one adds nothing
            parts[part] = max(0.0, level_s - reached_s)
            reached_s = max(reached_s, level_s)
        parts[Part.UNEXPLAINED] = self.step_s - sum(parts.values())
        return parts

    def _middle_s(self, seconds: Sequence[float]) -> float:
        """Return the median ratio to the loop of the same round, times a step of the loop.

        What slows the machine down for longer than a round leaves the ratio as it is.
        """
        pairs = zip(seconds, self.arms_s[Arm.LOOP], strict=True)
        return self.step_s * median(one_s / loop_s for one_s, loop_s in pairs)

    def compute_fracs(self) -> list[float]:
        """Return the share of compute in a step, of each block."""
        pairs = zip(self.arms_s[Arm.WHOLE], self.arms_s[Arm.LOOP], strict=True)
        return [whole_s / self.num / loop_s for whole_s, loop_s in pairs]


def measure_ablation(
    num: int,
    recipe: Recipe,
    task: Task,
    *,
    is_cuda: bool,
    folder: Path,
    copies: Path,
    cores: int | None,
    block_s: float,
    budget_s: float = math.inf,
) -> Ablation:
    """Start processes for several devices, and time their steps with one thing removed at a time.

    Args:
        num: of devices.
        recipe: `device.count` is ignored.
        folder: a private one, on the disk of the run.
        copies: folder with decoded copies of the store.
        cores: of each device on a CPU; None: devices are GPUs.
        block_s: seconds of a block.
        budget_s: seconds after which no further round is begun; there are three rounds in any case.

    Raises:
        UsageError: if a batch cannot be divided, or other processes cannot make the task.
        ResourceError: if a process ends.
    """
    recipe = replace(recipe, device=replace(recipe.device, count=num))
    arguments = {
        "recipe": recipe,
        "task": name_for_others(task),
        "copies": copies,
        "cores": cores,
    }
    there = folder / f"devices-{num}"
    with Team(num, _Member, arguments, is_cuda=is_cuda, folder=there) as team:
        return _measure(team, num, there, block_s=block_s, budget_s=budget_s)


def _measure(team: Team, num: int, folder: Path, *, block_s: float, budget_s: float) -> Ablation:
    arms = tuple(Arm) if num > 1 else _OF_ONE_DEVICE
    found: dict[Arm, list[float]] = {arm: [] for arm in arms}
    fastest: list[float] = []
    use: list[list[tuple[float, float]]] = [[] for _ in range(num)]
    one = 0
    if num > 1:  # the fastest rank is the one that shows what a step needs
        pilot = team.ask("block", arm=Arm.APART, one=0, num_steps=_WARM_UP)
        one = min(range(num), key=lambda rank: median(pilot[rank].steps_s))
    num_steps = {}
    for arm in arms:
        pilot = team.ask("block", arm=arm, one=one, num_steps=_WARM_UP)
        step_s = max(block.step_s for block in pilot if block is not None)
        num_steps[arm] = min(max(round(block_s / max(step_s, 1e-9)), _MIN_STEPS), _MOST_STEPS)
    started = time.monotonic()
    for idx in range(NUM_ROUNDS):
        if idx >= _MIN_ROUNDS and time.monotonic() - started > budget_s:
            break
        for arm in arms if idx % 2 == 0 else reversed(arms):
            blocks = team.ask("block", arm=arm, one=one, num_steps=num_steps[arm])
            there = [block for block in blocks if block is not None]
            if arm is Arm.APART:
                steps = list(zip(*(block.steps_s for block in there), strict=True))
                found[arm].append(fmean(max(of_ranks) for of_ranks in steps))
                fastest.append(min(fmean(block.steps_s) for block in there))
            else:
                found[arm].append(max(block.step_s for block in there))
            if arm is Arm.LOOP:
                _extend(use, blocks)
    hosts = team.ask("host")
    return Ablation(
        num=num,
        arms_s={arm: tuple(seconds) for arm, seconds in found.items()},
        fastest_s=tuple(fastest),
        start_s=team.start_s if num > 1 else 0.0,
        validation_s=max(team.ask("validation_s")),
        saves=team.ask("saves", folder=folder)[0],
        num_train=team.ask("num_train")[0],
        exchanged_bytes=team.ask("exchanged_bytes")[0],
        use=tuple(
            DeviceUse(
                rank=rank,
                host=hosts[rank],
                ends_s=tuple(end for end, _ in use[rank]),
                busy_frac=tuple(busy for _, busy in use[rank]),
            )
            for rank in range(num)
        ),
    )


def _extend(use: Sequence[list[tuple[float, float]]], blocks: Sequence[Block]) -> None:
    """Add the windows of a block of the loop to those of earlier ones."""
    start = max((windows[-1][0] for windows in use if windows), default=0.0)
    for windows, block in zip(use, blocks, strict=True):
        windows += [(start + end, busy) for end, busy in block.use]


@dataclass(kw_only=True)
class _Loop(Training):
    """A training that takes some steps at a time, and notes when each has ended.

    Attributes:
        until: the step at which it stops.
        marks: at the end of each step, seconds of the clock, busy seconds, and its examples.
        cores: of this process.
    """

    until: int = 0
    marks: list[tuple[float, float, int]] = field(default_factory=list)
    cores: int = 1

    def lr(self) -> float:
        """Return 0: the weights stay as they are."""
        return 0.0

    def reason_to_stop(self) -> str | None:
        """Return why the steps end here, or None."""
        return "measured" if self.position.step >= self.until else None

    def count(self, num_examples: int, *, num_steps: int = 1) -> bool:
        """Count a step, and note its end."""
        is_epoch_end = super().count(num_examples, num_steps=num_steps)
        if len(self.marks) == _SKIPPED:
            wait_for(self.device)
        self.mark(num_examples)
        return is_epoch_end

    def mark(self, num_examples: int = 0) -> None:
        """Note the time, and how long this process was busy."""
        self.marks.append((time.perf_counter(), self._busy_s(), num_examples))

    def _busy_s(self) -> float:
        if self.clock.device is None:
            return time.process_time() / self.cores
        timeline = self.clock.device.so_far()
        return timeline.wall_s - timeline.phases_s.get(Phase.DATA_WAIT, 0.0)


class _Member:
    """One of the devices, in a process of its own."""

    def __init__(
        self, world: World, *, recipe: Recipe, task: str, copies: Path, cores: int | None
    ) -> None:
        _use_cores(cores)
        self._world = world
        made, sources = task_of_rank(recipe, task, copies=copies)
        require_parallel(recipe, sources, world)
        self._device = device = open_device(recipe, local_rank=world.local_rank)
        self._opened = ExitStack()
        opened = open_subject(recipe, made, sources, device=device, world=world)
        base = self._opened.enter_context(opened)
        self._subject = subject = head_of(base) if recipe.features.cached else base
        subject.lr = 0.0
        self._num_train = base.num_train
        batch = subject.batch_size
        own = batch // world.size + (world.rank < batch % world.size)
        least = batch // world.size
        if least < subject.min_batch_size:
            raise UsageError(
                f"a batch of {batch} leaves {least} example{'s' if least != 1 else ''} for each of "
                f"{world.size} devices, but a BatchNorm needs 2",
                where="batch.global_batch_size",
                fix=f"Type --batch-size {2 * world.size} or more, or fewer --devices.",
            )
        self._whole = subject.batch_of(batch)
        self._part = self._whole.rows(slice(0, own)) if own < batch else self._whole
        self._reader = subject.reader()
        self._batches = self._reader.endless()
        self._loop = self._open_loop(cores or num_cores())

    def block(self, arm: Arm, one: int, num_steps: int) -> Block | None:
        """Time steps of one kind; None on the ranks that rest meanwhile.

        Args:
            one: the rank that takes the steps of one device.
        """
        if arm in _OF_ONE and self._world.rank != one:
            return None
        if arm is Arm.LOOP:
            return self._block_of_loop(num_steps)
        batch = self._whole if arm is Arm.WHOLE else self._part
        world = self._world if arm is Arm.REPEATED else ALONE
        is_apart = arm in (Arm.APART, *_OF_ONE)
        with self._subject.parts.step.apart() if is_apart else nullcontext():
            if arm is Arm.READ:
                self._forget_read_ahead()
            wait_for(self._device)
            if arm not in _OF_ONE:
                self._world.barrier()
            seconds, num_full = [], 0.0
            for _ in range(num_steps):
                num_full += self._share_of_next() if arm is Arm.READ else 1.0
                started = time.perf_counter()
                if arm is Arm.READ:
                    self._subject.step_on(self._batches)
                else:
                    self._step(batch, world)
                wait_for(self._device)
                seconds.append(time.perf_counter() - started)
        return Block(step_s=sum(seconds) / num_full, steps_s=tuple(seconds))

    def validation_s(self) -> float:
        """Return the seconds of a validation by all ranks, from its first batches; 0 without."""
        subject, recipe = self._subject, self._subject.recipe
        reader = open_validation(
            subject.sources.val, recipe.batch, recipe.loader, recipe.data.where, self._world
        )
        if reader is None:
            return 0.0

        def seconds_of(num_batches: int) -> float:
            hold_batches(reader, num_batches)
            self._world.barrier()
            started = time.perf_counter()
            result = evaluate(
                subject.task,
                subject.model,
                reader,
                device=self._device,
                precision=recipe.device.precision,
                memory_format=subject.memory_format,
                max_batches=num_batches,
                world=self._world,
            )
            took_s = max(self._world.gather(time.perf_counter() - started))
            return took_s * reader.num_examples / max(1, result.rows.size)

        seconds_of(1)
        whole_s = seconds_of(1)
        fits = int(_VALIDATION_S / max(whole_s / reader.steps_per_epoch, 1e-9))
        if fits > 1:
            whole_s = seconds_of(min(fits, reader.steps_per_epoch))
        reader.close()
        return whole_s

    def saves(self, folder: Path) -> SaveTimes | None:
        """Return the seconds of a checkpoint, which rank 0 alone writes."""
        return measure_saves(self._subject, folder) if self._world.is_main else None

    def num_train(self) -> int:
        """Return the number of examples of an epoch, also if only some are read here."""
        return self._num_train

    def exchanged_bytes(self) -> int:
        """Return the bytes of the gradients of a step."""
        return sum(weight.nbytes for weight in self._subject.learning())

    def host(self) -> str:
        """Return the name of this machine."""
        return host_name().split()[0]

    def _open_loop(self, cores: int) -> _Loop:
        subject, recipe = self._subject, self._subject.recipe
        return _Loop(
            recipe=recipe,
            stage=stages_of(recipe.train, recipe.batch)[-1],
            train_reader=subject.reader(),
            val_reader=None,
            rule=ValidationRule(recipe.stopping),
            task=subject.task,
            model=subject.model,
            device=self._device,
            memory_format=subject.memory_format,
            clock=subject.clock,
            parts=subject.parts,
            world=self._world,
            cores=cores,
        )

    def _block_of_loop(self, num_steps: int) -> Block:
        loop = self._loop
        loop.marks.clear()
        loop.until = loop.position.step + _SKIPPED + 1 + num_steps
        wait_for(self._device)
        self._world.barrier()
        began_s = time.perf_counter()
        fit(loop)
        wait_for(self._device)
        loop.mark()
        start_s, end_s = loop.marks[_SKIPPED][0], loop.marks[-1][0]
        num_examples = sum(num for _, _, num in loop.marks[_SKIPPED + 1 :])
        full_steps = num_examples / self._subject.batch_size
        return Block(
            step_s=(end_s - start_s) / full_steps, use=tuple(_windows(loop.marks, began_s))
        )

    def _step(self, batch: Batch, world: World) -> None:
        subject = self._subject
        moved = augment_part(
            subject.recipe,
            subject.task,
            subject.to_device(batch),
            epoch=0,
            device=self._device,
            world=world,
        )
        num_global = None if world.is_alone else subject.batch_size
        subject.parts.step(moved, step=0, lr=0.0, num_global=num_global)

    def _share_of_next(self) -> float:
        """Return how much of a full step the next one of the reader is, over all ranks."""
        size, num = self._subject.batch_size, self._reader.num_examples
        at = (self._subject.num_steps + self._subject.num_skipped) % self._reader.steps_per_epoch
        return min(size, num - at * size) / size

    def _forget_read_ahead(self) -> None:
        """Drop the batches that were read while others were timed."""
        num = self._subject.recipe.loader.prefetch_batches
        for _ in range(num):
            next(self._batches)
        self._subject.num_skipped += num


def _use_cores(cores: int | None) -> None:
    """Use so many of the cores of this process, on a CPU."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])


def _windows(
    marks: Sequence[tuple[float, float, int]], began_s: float
) -> Iterator[tuple[float, float]]:
    """Yield the end and the busy share of windows of several steps."""
    start_s, start_busy_s, _ = marks[0]
    for end_s, busy_s, _ in marks[1:]:
        if end_s - start_s >= _WINDOW_S:
            share = (busy_s - start_busy_s) / (end_s - start_s)
            yield end_s - began_s, min(max(share, 0.0), 1.0)
            start_s, start_busy_s = end_s, busy_s

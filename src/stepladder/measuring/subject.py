"""The subject of a profile: a recipe's model, step and reader, built once and discarded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader, Source, resolve_where
from stepladder.data.reading.threads import num_reading_threads
from stepladder.measuring.probe import untouched
from stepladder.models.checkpointing import set_checkpointing
from stepladder.models.forwards import as_built
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.training.asynchronous.attach import Employer, parts_of_workers, rows_only
from stepladder.training.clock import Clock, Phase
from stepladder.training.features.feature_pass import TrunkPass
from stepladder.training.ranks.follower import share_start
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    StageParts,
    make_clock,
    make_model,
    make_stage_parts,
    make_train_reader,
    make_trunk_pass,
    use_threads,
)
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast
from stepladder.training.training import augment_part, stand_in

MAX_HELD_BATCHES = 64


@dataclass(kw_only=True)
class Subject:
    """A recipe, ready to take real steps on its own model.

    Attributes:
        task: a shallow copy of the user's, because building a model may change it.
        recipe: with `auto` resolved for this machine.
        model: in the state of the recipe's last stage; the head is trained in all stages.
        lr: learning rate of that stage.
        world: the ranks that take the steps together, each on its part of a batch.
        num_steps: taken so far.
        num_skipped: batches of `reader` that were read, but not used in a step.
        has_workers: workers compute the steps, from examples that they read and augment.
    """

    task: Task
    recipe: Recipe
    sources: Sources
    device: torch.device
    model: nn.Module
    parts: StageParts
    clock: Clock
    lr: float
    world: World = ALONE
    num_steps: int = 0
    num_skipped: int = 0
    has_workers: bool = False

    @property
    def unit(self) -> int:
        """Number of steps that are taken together: more than one if workers take local steps."""
        workers = self.recipe.asynchronous
        return workers.local_steps if self.has_workers and workers.is_local else 1

    @property
    def trunk_and_head(self) -> tuple[nn.Module, nn.Module] | None:
        """The trunk and the head of the model, or None."""
        return self.task.split(self.model)

    @property
    def is_trunk_frozen(self) -> bool:
        """Whether the trunk is frozen."""
        return bool(self.parts.frozen)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of image tensors."""
        return MEMORY_FORMATS[self.recipe.device.memory_format]

    @property
    def batch_size(self) -> int:
        """Number of examples in a full step."""
        return self.recipe.batch.global_batch_size

    @property
    def num_train(self) -> int:
        """Number of training examples in an epoch."""
        return max(1, round(len(self.sources.train) * self.recipe.data.fraction))

    @property
    def reading_threads(self) -> int:
        """Number of threads that read the training data, including the main thread."""
        default = self.sources.train.default_threads
        return max(1, num_reading_threads(self.recipe.loader.num_threads, default))

    @property
    def min_batch_size(self) -> int:
        """2 if a BatchNorm is trained, which needs more than one example; else 1."""
        return (
            2 if any(isinstance(m, BatchNorm) and m.training for m in self.model.modules()) else 1
        )

    def learning(self) -> list[nn.Parameter]:
        """List the trainable weights."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast of the recipe's precision."""
        return autocast(self.device, self.recipe.device.precision)

    @contextmanager
    def as_built(self) -> Iterator[None]:
        """Use the original forward of all modules, not folded, compiled or checkpointed."""
        is_checkpointing = self.recipe.device.gradient_checkpointing and not self.is_trunk_frozen
        with as_built(self.model):
            if is_checkpointing:
                set_checkpointing(self.model, False)
            try:
                yield
            finally:
                if is_checkpointing:
                    set_checkpointing(self.model, True)

    def trunk_pass(self) -> TrunkPass:
        """Return the pass of examples through the trunk."""
        return make_trunk_pass(self.recipe, self.task, self.model, device=self.device)

    def to_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device, as a step does."""
        return batch.to(self.device, memory_format=self.memory_format)

    def step_on(self, batches: Iterator[Batch]) -> Batch:
        """Take one real step on the next batch, in the phases of the loop; return the batch."""
        clock = self.clock
        with clock.phase(Phase.DATA_WAIT):
            batch = next(batches)
        with clock.phase(Phase.TO_DEVICE):
            moved = self.to_device(batch)
        with clock.phase(Phase.AUGMENT):
            if not self.has_workers:
                moved = augment_part(
                    self.recipe, self.task, moved, epoch=0, device=self.device, world=self.world
                )
        if self.world.is_alone:
            self.parts.step(moved, step=self.num_steps, lr=self.lr)
        else:
            self._step_together(moved)
        self.num_steps += 1
        return batch

    def _step_together(self, part: Batch) -> None:
        """Take a step on this rank's part of a batch, which may be empty."""
        is_empty = part.ids.numel() == 0
        self.parts.step(
            self.stand_in() if is_empty else part,
            step=self.num_steps,
            lr=self.lr,
            num_global=self.num_in_step(self.num_steps, part),
            is_stand_in=is_empty,
        )

    def stand_in(self) -> Batch:
        """Return a training example on the device, for a step without examples for this rank."""
        return stand_in(self.sources.train, self.device, self.memory_format)

    def num_in_step(self, step: int, batch: Batch) -> int:
        """Return the number of examples of a step, over all ranks.

        Args:
            step: counted from the first one on `reader`.
            batch: this rank's part.
        """
        if self.world.is_alone:
            return batch.ids.numel()
        size, num = self.batch_size, self.num_held
        return min(size, num - (step + self.num_skipped) % -(-num // size) * size)

    @property
    def num_held(self) -> int:
        """Number of examples of an epoch of `reader`."""
        return max(1, round(len(self.sources.train) * self._as_read().data.fraction))

    def _as_read(self) -> Recipe:
        """Return the recipe whose examples are read: some of them, if they are held in memory."""
        recipe = self.recipe
        if recipe.data.where is not Where.MEMORY:
            return recipe
        wanted = MAX_HELD_BATCHES * recipe.batch.global_batch_size
        fraction = min(recipe.data.fraction, wanted / len(self.sources.train))
        return replace(recipe, data=replace(recipe.data, fraction=fraction))

    def reader(self, batch_size: int | None = None) -> Reader:
        """Return the recipe's reader of training batches, or one of another batch size.

        If images are held in memory, only some are loaded: it makes no difference to a step, and
        loading all of them may take minutes.
        """
        if batch_size is not None:
            return make_train_reader(_with_batch(self.recipe, batch_size), self.sources.train)
        return make_train_reader(self._as_read(), self.sources.train, self.world)

    def batch_of(self, num_examples: int) -> Batch:
        """Read real training examples into host memory, at most as many as there are."""
        reader = self.reader(num_examples)
        batches = reader.epoch(0)
        try:
            return next(batches)
        finally:
            batches.close()
            reader.close()


@contextmanager
def open_subject(
    recipe: Recipe,
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    world: World = ALONE,
    employer: Employer | None = None,
) -> Iterator[Subject]:
    """Build a recipe's model and step for the block; restore random states and threads after it.

    Args:
        world: the ranks that each build the same model, and take its steps together.
        employer: of workers, which compute the steps if the recipe says so; None: this process
            computes them.
    """
    threads = torch.get_num_threads()
    with untouched():
        use_threads(recipe)
        try:
            resolved = _resolved(recipe, sources.train)
            found = _build(resolved, copy.copy(task), sources, device, world)
            if employer is not None and recipe.asynchronous.is_on:
                found = _by_workers(found, employer)
            with closing(found.parts.step):
                yield found
        finally:
            torch.set_num_threads(threads)


def _build(
    recipe: Recipe, task: Task, sources: Sources, device: torch.device, world: World
) -> Subject:
    model = make_model(recipe, task, device)
    share_start(model, world)
    clock = make_clock(device)
    stage = stages_of(recipe.train, recipe.batch)[-1]
    example = None
    if not world.is_alone:
        example = stand_in(sources.train, device, MEMORY_FORMATS[recipe.device.memory_format])
    parts = make_stage_parts(
        recipe, stage, task, model, device=device, clock=clock, world=world, example=example
    )
    return Subject(
        task=task,
        recipe=recipe,
        sources=sources,
        device=device,
        model=model,
        parts=parts,
        clock=clock,
        lr=stage.lr,
        world=world,
    )


def _by_workers(subject: Subject, employer: Employer) -> Subject:
    """Return a subject whose steps workers compute; this process counts rows."""
    parts = parts_of_workers(
        subject.recipe,
        subject.task,
        subject.sources,
        model=subject.model,
        parts=subject.parts,
        device=subject.device,
        clock=subject.clock,
        employer=employer,
    )
    return replace(subject, parts=parts, sources=rows_only(subject.sources), has_workers=True)


def _resolved(recipe: Recipe, train: Source) -> Recipe:
    if recipe.data.where is not Where.AUTO:
        return recipe
    where = resolve_where(train, Where.AUTO, fraction=recipe.data.fraction)
    return replace(recipe, data=replace(recipe.data, where=where))


def _with_batch(recipe: Recipe, batch_size: int) -> Recipe:
    return replace(
        recipe,
        data=replace(recipe.data, where=Where.STREAM),  # a few rows need not be held in memory
        batch=replace(recipe.batch, global_batch_size=batch_size),
    )

"""What one worker computes: gradients of its examples, or the change of its own weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepladder.config.choices import AsyncMethod, WorkerData
from stepladder.config.recipe import AsynchronousConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader
from stepladder.parallel.asynchronous.flat import Flat
from stepladder.parallel.asynchronous.shared import SharedWeights
from stepladder.parallel.world import World
from stepladder.task.contract import Task
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    StageParts,
    make_clock,
    make_model,
    make_stage_parts,
    make_train_reader,
)
from stepladder.training.stage import frozen_names, stages_of
from stepladder.training.update import Update


class Work(NamedTuple):
    """What a worker is to do next.

    Attributes:
        number: counts the works of a run, so that no two draw the same random numbers.
        lr: learning rate of the steps that it takes by itself.
        num_steps: of them; 1 if it only computes a gradient.
    """

    number: int
    lr: float
    num_steps: int = 1


class Contribution(NamedTuple):
    """What a worker sends back.

    Attributes:
        num_examples: that were used; 0 if the worker had none in this step.
        loss_sum: of their losses.
        logs: sums of the values that the task logs, by name.
        change: mean gradient of the examples, or the weights before minus those after; flat.
            Empty if the worker has changed the shared weights itself.
        buffers: change of running statistics; flat.
        age: updates by other workers meanwhile, if the worker counts them itself.
        unused: indices of the weights without a gradient.
    """

    num_examples: int
    loss_sum: float
    logs: Mapping[str, float]
    change: Tensor
    buffers: Tensor
    age: int = 0
    unused: Sequence[int] = ()


class GradientTaker(Update):
    """Leaves the gradients of a step in the weights' `grad`, instead of applying them."""

    def __call__(
        self, step_loss: Tensor, *, step: int, lr: float, wants_norm: bool = False
    ) -> None:
        """Do nothing: the gradients are sent."""


def worker_batch_size(recipe: Recipe) -> int:
    """Return the examples that all workers together read for one global batch.

    With backup workers it is more, as some gradients are dropped.
    """
    config = recipe.asynchronous
    return round(recipe.batch.global_batch_size * config.workers / config.num_in_batch)


def reader_of(recipe: Recipe, sources: Sources, worker: int) -> Reader:
    """Return a worker's reader: of its part of each global batch, or of all examples."""
    num, size = recipe.asynchronous.workers, worker_batch_size(recipe)
    if recipe.asynchronous.data is WorkerData.SHARD:
        read = replace(recipe, batch=replace(recipe.batch, global_batch_size=size))
        return make_train_reader(read, sources.train, World(rank=worker, size=num))
    read = replace(
        recipe,
        seed=recipe.seed + 1 + worker,
        batch=replace(recipe.batch, global_batch_size=max(1, round(size / num))),
    )
    return make_train_reader(read, sources.train)


class Trained(NamedTuple):
    """The tensors of a model that training changes.

    Attributes:
        params: in the order of the optimizer's groups.
        buffers: running statistics.
    """

    params: list[Tensor]
    buffers: list[Tensor]

    @classmethod
    def of(cls, model: nn.Module, parts: StageParts) -> Trained:
        """Return those of a stage."""
        frozen = frozen_names(model, parts.frozen)
        names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        others = [
            tensor
            for name, tensor in model.state_dict(keep_vars=True).items()
            if name not in frozen and name not in names and _is_statistic(tensor)
        ]
        groups = parts.update.optimizer.param_groups
        return cls([param for group in groups for param in group["params"]], others)


def _is_statistic(buffer: Tensor) -> bool:
    """Return whether a buffer may be a running statistic, or count them; others never change."""
    is_count = buffer.dtype is torch.int64 and buffer.numel() == 1
    return is_count or buffer.dtype in (torch.float32, torch.float16, torch.bfloat16)


class Contributor:
    """Computes the contributions of one worker, from the weights that it gets.

    Args:
        recipe: of the run.
        worker: its number.
        at: epoch, and examples of it that the run has used so far, where the worker begins to
            read.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        sources: Sources,
        *,
        worker: int,
        device: torch.device,
        at: tuple[int, int] = (0, 0),
    ) -> None:
        self._recipe, self._task, self._device = recipe, task, device
        self._config: AsynchronousConfig = recipe.asynchronous
        self._model = make_model(recipe, task, device)
        takes_steps = self._config.is_local or self._config.method is AsyncMethod.HOGWILD
        self._parts = make_stage_parts(
            recipe,
            stages_of(recipe.train, recipe.batch)[0],
            task,
            self._model,
            device=device,
            clock=make_clock(device),
            update_type=Update if takes_steps else GradientTaker,
        )
        self.on_progress: Callable[[], None] = lambda: None
        self.trained = Trained.of(self._model, self._parts)
        self.weights = Flat(self.trained.params)
        self.statistics = Flat(self.trained.buffers)
        self._change = self.weights.empty()
        self._before = self.statistics.empty()
        self._reader = reader_of(recipe, sources, worker)
        self._epoch, offset = at
        self._batches = self._reader.epoch(self._epoch, start=offset)

    def compute(self, work: Work, weights: Tensor, statistics: Tensor) -> Contribution:
        """Return the contribution of the next examples.

        Args:
            weights, statistics: flat; not changed.
        """
        self.weights.scatter(weights, self.trained.params)
        self.statistics.scatter(statistics, self.trained.buffers)
        num, loss_sum, logs = self.take_steps(work)
        changes = self._changes(weights)
        change = self.weights.gather(changes, self._change)
        unused = [idx for idx, one in enumerate(changes) if one is None]
        for param in self.trained.params:
            param.grad = None
        after = self.statistics.gather(self.trained.buffers, self._before)
        moved = _difference(after, statistics)
        return Contribution(num, loss_sum, logs, change, moved, unused=unused)

    def share(self, shared: SharedWeights) -> None:
        """Use shared weights from now on, so that steps change them for all workers."""
        for param, view in zip(
            self.trained.params, self.weights.views(shared.weights), strict=True
        ):
            param.data = view

    def change_shared(self, work: Work, statistics: Tensor) -> Contribution:
        """Take steps on the shared weights."""
        self.statistics.scatter(statistics, self.trained.buffers)
        num, loss_sum, logs = self.take_steps(work)
        after = self.statistics.gather(self.trained.buffers, self._before)
        moved = _difference(after, statistics)
        return Contribution(num, loss_sum, logs, torch.zeros(0), moved)

    def take_steps(self, work: Work) -> tuple[int, float, dict[str, float]]:
        """Take the steps of a work; return the examples, and the sums of losses and logs."""
        step = self._parts.step
        for idx in range(work.num_steps):
            batch = self._next()
            if batch.ids.numel():
                number = work.number * work.num_steps + idx
                step(self._on_device(batch), step=number, lr=work.lr)
            self.on_progress()
        num = step.num_in_window
        if num == 0:
            return 0, 0.0, {}
        means = step.take_window()
        logs = {name: mean * num for name, mean in means.logs.items()}
        is_bad = self._parts.update.read_first_bad() is not None  # such as a gradient
        return num, math.nan if is_bad else means.loss * num, logs

    def _changes(self, weights: Tensor) -> list[Tensor | None]:
        params = self.trained.params
        if not self._config.is_local:
            return [param.grad for param in params]
        before = self.weights.views(weights)
        return [
            there.to(param.device) - param.detach()
            for there, param in zip(before, params, strict=True)
        ]

    def _next(self) -> Batch:
        batch = next(self._batches, None)
        while batch is None:
            self._epoch += 1
            self._batches = self._reader.epoch(self._epoch)
            batch = next(self._batches, None)
        return batch

    def _on_device(self, batch: Batch) -> Batch:
        memory_format = MEMORY_FORMATS[self._recipe.device.memory_format]
        moved = batch.to(self._device, memory_format=memory_format)
        return self._task.augment(moved, seed=self._recipe.seed, epoch=self._epoch)

    def close(self) -> None:
        """Stop reading."""
        batches: Generator[Any] = self._batches
        batches.close()
        self._reader.close()


def _difference(after: Tensor, before: Tensor) -> Tensor:
    """Return a change; 0 where nothing changed, also for infinite values."""
    return torch.where(after == before, 0.0, after - before)

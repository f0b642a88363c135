"""The job that checks inspect: built once, shared by all checks, and not changed."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.checks.evidence.loss_calls import LossCall, loss_calls
from stepladder.config.choices import Split, Where
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe, uncompiled
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import Source
from stepladder.errors import ResourceError
from stepladder.measuring.probe import untouched
from stepladder.measuring.subject import Subject, open_subject
from stepladder.models.freezing import set_training
from stepladder.task.contract import Task
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    make_held_out_reader,
    make_model,
    make_train_reader,
    open_device,
)
from stepladder.training.setup.memory import require_memory
from stepladder.training.setup.table_version import open_at_version
from stepladder.training.stage import enter_stage, stages_of
from stepladder.training.step import autocast

T = TypeVar("T")


@dataclass(kw_only=True)
class CheckedJob:
    """A job, with lazily computed values that several checks share.

    Checks work on copies: each call of `model()` returns a new one.

    Attributes:
        config: the whole job, resolved.
        task: a shallow copy of the user's.
        task_name: "image_classification", or "FILE.py:NAME".
        sources: the splits.
        device: of the run.
        deadline: `time.perf_counter()` by which all checks must end; infinite: none.
        given: the model from `make_model`, if it is already built; never changed.
    """

    config: JobConfig
    task: Task
    task_name: str
    sources: Sources
    device: torch.device
    deadline: float = math.inf
    given: nn.Module | None = None
    _kept: dict[str, Any] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.config.recipe

    @property
    def run_dir(self) -> Path:
        """The run folder; it may not exist."""
        return self.config.run.dir

    def left_s(self) -> float:
        """Seconds until the deadline; below 0 after it."""
        return self.deadline - time.perf_counter()

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return the value that is cached under a name, or compute it now."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast("T", self._kept[name])

    # --- the model

    def model(self) -> nn.Module:
        """Return a new model with the initial weights of the run, in its first stage.

        In training mode, except for what the stage freezes.
        """
        try:
            model, frozen = copy.deepcopy(self._built)
        except (RuntimeError, ValueError):  # weight_norm and lazy norms cannot be copied
            model, frozen = self._build()
        set_training(model, frozen)
        return model

    @cached_property
    def _built(self) -> tuple[nn.Module, list[nn.Module]]:
        return self._build()

    def _build(self) -> tuple[nn.Module, list[nn.Module]]:
        with untouched():
            model = self._copy_of_given() or make_model(
                uncompiled(self.recipe), self.task, self.device
            )
            stage = stages_of(self.recipe.train, self.recipe.batch)[0]
            frozen = enter_stage(stage, self.task, model)
        return model, frozen

    def require_memory(self) -> None:
        """Check that a step fits into memory: otherwise the system would kill this process.

        Raises:
            ResourceError: if it cannot.
        """
        try:
            model, _ = self._built
            require_memory(self.recipe, self.task, model, self.sources, device=self.device)
        except ResourceError:
            raise
        except Exception:  # of user code: a check reports it
            return

    def _copy_of_given(self) -> nn.Module | None:
        """Copy the model that is already built; None without one, or if it is compiled."""
        if self.given is None or self.recipe.device.compile:
            return None
        try:
            return copy.deepcopy(self.given)
        except (RuntimeError, ValueError):
            return None

    @property
    def lr(self) -> float:
        """Learning rate of the first stage, without warm-up."""
        return stages_of(self.recipe.train, self.recipe.batch)[0].lr

    @contextmanager
    def subject(self, **changes: Any) -> Iterator[Subject]:
        """Yield a model with the run's optimizer and step, to take real steps with.

        Args:
            changes: groups of the recipe that are replaced, such as `augment=...`.
        """
        recipe = replace(self.recipe, **changes)
        with open_subject(
            recipe, copy.copy(self.task), self.sources, device=self.device
        ) as subject:
            yield subject

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast of the recipe's precision."""
        return autocast(self.device, self.recipe.device.precision)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss of each example of a batch on the device, (n,)."""
        with self.autocast():
            result = self.task.loss(model, batch)
        return result[0] if isinstance(result, tuple) else result

    def mean_loss(self, model: nn.Module, batch: Batch) -> float:
        """Return the mean training loss of a batch, without gradients; the model's mode is kept."""
        with torch.no_grad():
            return float(self.loss(model, batch).float().mean())

    # --- examples

    def source(self, split: Split) -> Source | None:
        """Return a split, or None."""
        found: Source | None = getattr(self.sources, split.value)
        return found

    def train_batches(self, num_batches: int) -> list[Batch]:
        """Return the first training batches of the run, before augmentation, on the device.

        Fewer if an epoch has fewer.
        """
        kept: list[Batch] = self.remember("train_batches", list)
        if len(kept) < num_batches:
            kept[:] = self._read_train(num_batches)
        return kept[:num_batches]

    def _read_train(self, num_batches: int) -> list[Batch]:
        recipe = replace(self.recipe, data=replace(self.recipe.data, where=Where.STREAM))
        reader = make_train_reader(recipe, self.sources.train)
        batches = reader.epoch(0)
        try:
            return [self.to_device(batch) for batch in itertools.islice(batches, num_batches)]
        finally:
            batches.close()
            reader.close()

    def augmented(self, batch: Batch, *, epoch: int = 0) -> Batch:
        """Augment a training batch as the run does."""
        return self.task.augment(batch, seed=self.recipe.seed, epoch=epoch)

    def held_out_batches(self, split: Split, num_batches: int | None = None) -> Iterator[Batch]:
        """Yield the first batches of val or test in their stored order, on the device.

        Args:
            num_batches: None: all of them.
        """
        recipe = self.recipe
        reader = make_held_out_reader(self.source(split), recipe.batch, recipe.loader, Where.STREAM)
        if reader is None:
            return
        batches = reader.epoch(0)
        try:
            for batch in itertools.islice(batches, num_batches):
                yield self.to_device(batch)
        finally:
            batches.close()
            reader.close()

    def rows(self, split: Split, rows: np.ndarray) -> Batch:
        """Read some rows of a split, on the device."""
        source = self.source(split)
        assert source is not None
        examples = source.read(rows)
        inputs, targets = (_as_tensors(value) for value in examples)
        if getattr(source, "picture_shape", None) is not None and isinstance(inputs, Tensor):
            inputs = inputs.permute(0, 3, 1, 2).contiguous()  # (n, h, w, c) as stored
        return self.to_device(Batch(inputs, targets, torch.from_numpy(rows)))

    def to_device(self, batch: Batch) -> Batch:
        """Copy a batch to the device, as a step's own copy does."""
        layout = MEMORY_FORMATS[self.recipe.device.memory_format]
        return batch.to(self.device, memory_format=layout)

    def describe(self, split: Split, row: int) -> str:
        """Return a readable name of an example: "val/cat/001.jpg", or "val row 3"."""
        source = self.source(split)
        name = f"row {row}" if source is None else source.describe(row)
        return name if name.startswith(f"{split.value}/") else f"{split.value} {name}"

    # --- the first batch

    @cached_property
    def first_batch(self) -> Batch:
        """The first training batch, augmented."""
        return self.augmented(self.train_batches(1)[0])

    @cached_property
    def _first_pass(self) -> tuple[Tensor, list[LossCall]]:
        model, batch = self.model(), self.first_batch  # outside: build_model may train
        with untouched(), torch.no_grad(), loss_calls() as calls:
            losses = self.loss(model, batch)
        return losses, calls

    @property
    def first_losses(self) -> Tensor:
        """Loss of each example of the first batch, in training mode, before any step; (n,)."""
        return self._first_pass[0]

    @property
    def calls(self) -> list[LossCall]:
        """Calls of loss functions, softmax and sigmoid in one forward pass of the first batch."""
        return self._first_pass[1]

    @property
    def loss_call(self) -> LossCall | None:
        """The call of a loss function, if there is exactly one; else None."""
        losses = [call for call in self.calls if call.is_loss]
        return losses[0] if len(losses) == 1 else None

    @cached_property
    def num_classes(self) -> int | None:
        """Number of classes of a classifier: columns of the input of its cross-entropy."""
        call = self.loss_call
        named = ("cross_entropy", "nll_loss")
        if call is None or call.name not in named or call.scores.dim() < 2:
            return None
        return int(call.scores.shape[1])

    def labels(self, split: Split) -> np.ndarray | None:
        """Return the class of each row of a split, int64 (n,); None if it is not known.

        None for test: no check reads its labels.
        """
        source = self.source(split)
        if source is None or split is Split.TEST:
            return None
        return None if source.labels is None else np.asarray(source.labels)

    def listed_counts(self, split: Split) -> np.ndarray | None:
        """Return the number of examples of each class, if the data list it, as a store does.

        Read from the store's manifest, so that labels of test stay unread.
        """
        counts = getattr(self.source(split), "class_counts", None)
        return None if counts is None else np.asarray(counts, dtype=np.int64)


def open_job(config: JobConfig, task: Task, *, task_name: str) -> CheckedJob:
    """Open a job for checks.

    Raises:
        DataError: if there is nothing to train on.
        ResourceError: if its device is not available.
    """
    task = copy.copy(task)
    return CheckedJob(
        config=config,
        task=task,
        task_name=task_name,
        sources=open_at_version(task, config.recipe.data.table_version),
        device=open_device(config.recipe),
    )


def _as_tensors(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

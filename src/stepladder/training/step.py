"""One optimizer step: forward, backward, update, and a guard against non-finite losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision
from stepladder.data.batch import Batch
from stepladder.errors import UsageError
from stepladder.task.contract import Task
from stepladder.training.clock import Clock, Phase
from stepladder.training.randomness import seed_step
from stepladder.training.update import Update


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Return the autocast context of a precision; a null context for fp32 and half weights."""
    if precision is Precision.BF16:
        return torch.autocast(device.type, torch.bfloat16)
    if precision is Precision.FP16:
        return torch.autocast(device.type, torch.float16)
    return nullcontext()


def split_batch(batch: Batch, micro_batch_size: int | None) -> Iterator[Batch]:
    """Split a batch into parts of at most micro_batch_size examples."""
    n = batch.ids.numel()
    if micro_batch_size is None or n <= micro_batch_size:
        yield batch
        return
    for start in range(0, n, micro_batch_size):
        rows = slice(start, start + micro_batch_size)
        yield Batch(_rows(batch.inputs, rows), _rows(batch.targets, rows), batch.ids[rows])


def _rows(value: Any, rows: slice) -> Any:
    if isinstance(value, Tensor):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: _rows(item, rows) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rows(item, rows) for item in value)
    return value


@dataclass(frozen=True, kw_only=True)
class WindowMeans:
    """Means over the steps since the last call.

    Attributes:
        loss: mean training loss per example.
        logs: means of the values that the task logs, by name.
        grad_norm: norm of the last step's gradient, before clipping; None: not measured.
        num_examples: number of examples in the means.
    """

    loss: float
    logs: Mapping[str, float]
    grad_norm: float | None
    num_examples: int


class Step:
    """Takes optimizer steps and sums the values of a log line, without waiting for the device.

    The loss is the mean over the global batch: the local sum times world_size over the global
    count, so that after averaging gradients over ranks unequal slices are exact.

    Args:
        update: applies gradients to the weights.
        micro_batch_size: examples per forward pass; None: the whole batch.
        seed: seeds random layers of the model, together with the step and the rank.
        is_random: whether the model draws random numbers (dropout).
        threads: compute threads of a step on the CPU; None: unchanged.
    """

    def __init__(
        self,
        *,
        task: Task,
        model: nn.Module,
        update: Update,
        precision: Precision,
        device: torch.device,
        clock: Clock,
        micro_batch_size: int | None,
        seed: int,
        is_random: bool,
        threads: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._threads = threads
        self._task = task
        self._model = model
        self._update = update
        self._autocast = autocast(device, precision)
        self._clock = clock
        self._device = device
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._is_random = is_random
        self._rank = rank
        self._world_size = world_size
        self._is_free = device.type == "cpu"  # to read a tensor; elsewhere it waits for the device
        self._loss_sum: Tensor | float = self._zero()
        self._log_sums: dict[str, Tensor | float] = {}
        self._num_examples = 0
        self._is_checked = False

    def __call__(
        self,
        batch: Batch,
        *,
        step: int,
        lr: float,
        wants_norm: bool = False,
        global_count: int | None = None,
    ) -> None:
        """Take one step.

        Args:
            batch: this rank's examples, on the device.
            step: index of the step from 0; with the seed it fixes dropout.
            lr: learning rate of this step.
            wants_norm: measure the gradient's norm, for the log.
            global_count: examples of the step over all ranks; None: those of this batch.

        Raises:
            UsageError: if the task's loss is not one value per example.
        """
        threads = torch.get_num_threads()
        own = threads if self._threads is None else self._threads
        if own != threads:
            torch.set_num_threads(own)
        scale = self._world_size / (global_count or batch.ids.numel())
        step_loss: Tensor | None = None
        try:
            for part in split_batch(batch, self._micro_batch_size):
                with self._clock.phase(Phase.FORWARD):  # includes the sums for log lines
                    if self._is_random and step_loss is None:
                        seed_step(self._seed, step, self._rank, self._device)
                    with self._autocast:
                        losses, logs = self._losses(part)
                    total = losses.detach().sum(dtype=torch.float32)
                    step_loss = total if step_loss is None else step_loss + total
                    for name, values in logs.items():
                        before = self._log_sums.get(name, 0.0)
                        self._log_sums[name] = before + self._read(values.sum())
                with self._clock.phase(Phase.BACKWARD):
                    self._update.backward(losses, weight=scale)
            assert step_loss is not None
            with self._clock.phase(Phase.OPTIMIZER):
                self._update(step_loss, step=step, lr=lr, wants_norm=wants_norm)
                self._loss_sum += self._read(step_loss)
                self._num_examples += batch.ids.numel()
        finally:
            if own != threads:
                torch.set_num_threads(threads)

    def _zero(self) -> Tensor | float:
        if self._is_free:
            return 0.0
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _read(self, value: Tensor) -> Tensor | float:
        return value.item() if self._is_free else value

    def _losses(self, batch: Batch) -> tuple[Tensor, Mapping[str, Tensor]]:
        result = self._task.loss(self._model, batch)
        losses, logs = result if isinstance(result, tuple) else (result, {})
        if not self._is_checked:
            wanted = (batch.ids.numel(),)
            if tuple(losses.shape) != wanted:
                raise UsageError(
                    f"loss() returned a tensor of shape {tuple(losses.shape)}, not {wanted}",
                    where=type(self._task).__name__,
                    why="A mean over the batch would be wrong for batches of different sizes.",
                    fix="Return one loss per example (reduction='none').",
                )
            self._is_checked = True
        return losses, logs

    def peek_loss(self, otherwise: float) -> float:
        """Return the mean loss since the last call of take_window, or `otherwise` without a step.

        Waits for the device.
        """
        return float(self._loss_sum) / self._num_examples if self._num_examples else otherwise

    def take_window(self) -> WindowMeans:
        """Return the means since the last call, and reset them. Waits for the device."""
        n = max(self._num_examples, 1)
        means = WindowMeans(
            loss=float(self._loss_sum) / n if self._num_examples else math.nan,
            logs={name: float(value) / n for name, value in self._log_sums.items()},
            grad_norm=self._update.read_grad_norm(),
            num_examples=self._num_examples,
        )
        self._loss_sum = self._zero()
        self._log_sums.clear()
        self._num_examples = 0
        return means

    def state(self) -> tuple[dict[str, Tensor], int]:
        """Return the sums of the current window (tensors by name) and its number of examples."""
        logs = {f"log.{name}": value for name, value in self._log_sums.items()}
        sums = {"loss_sum": self._loss_sum, **logs}
        tensors = {
            name: value.clone()
            if isinstance(value, Tensor)
            else torch.tensor(value, dtype=torch.float64)
            for name, value in sums.items()
        }
        return tensors, self._num_examples

    def restore(self, tensors: Mapping[str, Tensor], num_examples: int) -> None:
        """Restore a saved window."""
        sums = {name: self._read(value.to(self._device)) for name, value in tensors.items()}
        self._loss_sum = sums.pop("loss_sum")
        self._log_sums = {name.removeprefix("log."): value for name, value in sums.items()}
        self._num_examples = num_examples

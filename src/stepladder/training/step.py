"""One optimizer step: forward, backward, update, and a guard against non-finite losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision
from stepladder.data.batch import Batch
from stepladder.data.order.hosts import rank_slice
from stepladder.errors import UsageError
from stepladder.parallel.agreement import NO_WISHES, StepAgreement, Wishes, sum_of
from stepladder.parallel.batchnorm import SyncedBatchNorm, set_counted, set_exchanged
from stepladder.parallel.collectives.exchange import Exchange
from stepladder.parallel.divided.contract import DividedGradients, DividedModel
from stepladder.parallel.gradients import GradientAverage
from stepladder.parallel.replicas import Replicas
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.training.clock import Clock, Phase
from stepladder.training.gain import GainMeter, NoMeter
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
        yield batch.rows(slice(start, start + micro_batch_size))


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

    The loss is the mean over the global batch: the local sum times the world's size over the
    global count, so that after averaging gradients over ranks unequal slices are exact.

    Args:
        update: applies gradients to the weights.
        micro_batch_size: examples per forward pass; None: the whole batch.
        seed: seeds random layers of the model, together with the step and the rank.
        is_random: whether the model draws random numbers (dropout).
        threads: compute threads of a step on the CPU; None: unchanged.
        world: the ranks that train together.
        is_static, has_unused, is_repeatable, exchange: see `GradientAverage`.
        devices: of this process, if it trains on more than one; see `Replicas`.
        divided: the model, if it is divided among the ranks.
        gain: measures what a larger batch is worth. A process alone then computes at least two
            parts in each step.

    Attributes:
        agreed: what all ranks agreed in the last step, in a world of several.
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
        world: World = ALONE,
        is_static: bool = False,
        has_unused: bool = False,
        is_repeatable: bool = False,
        exchange: Exchange | None = None,
        devices: Sequence[torch.device] = (),
        divided: DividedModel | None = None,
        gain: GainMeter | None = None,
    ) -> None:
        self._threads = threads
        self.gain = gain
        self._meter = gain or NoMeter()
        self._task = task
        self._model = model
        self._update = update
        self._autocast = autocast(device, precision)
        self._clock = clock
        self._device = device
        self._replicas = Replicas(model, task.loss, devices) if len(devices) > 1 else None
        self._micro_batch_size = micro_batch_size and micro_batch_size * max(1, len(devices))
        self._seed = seed
        self._is_random = is_random
        self._world = world
        self._average: GradientAverage | DividedGradients | None = None
        self._random_rank = world.rank if divided is None else divided.random_rank
        if divided is not None:
            self._average = DividedGradients(divided, self._own_losses)
        elif not world.is_alone:
            self._average = GradientAverage(
                model,
                self._own_losses,
                is_static=is_static,
                has_unused=has_unused,
                is_repeatable=is_repeatable and world.size > 2,  # two are added up in any order
                exchange=exchange,
            )
        self._has_synced = any(isinstance(one, SyncedBatchNorm) for one in model.modules())
        self._agreement = StepAgreement(world=world)
        self.agreed = NO_WISHES
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
        num_global: int | None = None,
        is_stand_in: bool = False,
        wishes: Wishes | None = None,
    ) -> None:
        """Take one step.

        Args:
            batch: this rank's examples, on the device.
            step: index of the step from 0; with the seed it fixes dropout.
            lr: learning rate of this step.
            wants_norm: measure the gradient's norm, for the log.
            num_global: examples of the step over all ranks; None: those of this batch.
            is_stand_in: the batch replaces an empty one, so that this rank joins the exchange of
                gradients; it does not count.
            wishes: of this rank, in a world of several.

        Raises:
            UsageError: if the task's loss is not one value per example.
        """
        threads = torch.get_num_threads()
        own_threads = threads if self._threads is None else self._threads
        if own_threads != threads:
            torch.set_num_threads(own_threads)
        num_here = batch.ids.numel()
        scale = 0.0 if is_stand_in else self._world.size / (num_global or num_here)
        step_loss: Tensor | None = None
        parts, num_parts = self._parts(batch, num_global)
        self._meter.begin()
        try:
            for idx, part in enumerate(parts):
                is_last = idx == len(parts) - 1
                is_counted = not is_stand_in and idx < num_parts
                with self._sending(is_last, scale if is_counted else 0.0):
                    with self._clock.phase(Phase.FORWARD):  # includes the sums for log lines
                        if self._is_random and step_loss is None:
                            seed_step(self._seed, step, self._random_rank, self._device)
                        if self._has_synced:
                            set_counted(self._model, not is_stand_in)
                        with self._autocast:
                            losses, logs = self._losses(part, step)
                        own = losses if idx < num_parts else losses[:0]
                        total = own.detach().sum(dtype=torch.float32)
                        step_loss = total if step_loss is None else step_loss + total
                        for name, values in logs.items():
                            before = self._log_sums.get(name, 0.0)
                            counted = values if is_counted else values[:0]
                            self._log_sums[name] = before + self._read(counted.sum())
                        if is_last and self._average is not None:
                            own = step_loss * 0 if is_stand_in else step_loss
                            self._agreement.begin(own, wishes or NO_WISHES)
                    with self._clock.phase(Phase.BACKWARD):
                        self._update.backward(losses, weight=scale if is_counted else 0.0)
                        self._meter.end_part(part.ids.numel() if is_counted else 0)
            assert step_loss is not None
            with self._clock.phase(Phase.OPTIMIZER):
                judged = step_loss
                if self._average is not None:
                    judged, self.agreed = self._agreement.end()
                self._meter.end(num=num_global or num_here, loss_scale=self._update.read_scale)
                self._update(judged, step=step, lr=lr, wants_norm=wants_norm)
                if not is_stand_in:
                    self._loss_sum += self._read(step_loss)
                    self._num_examples += num_here
        finally:
            if own_threads != threads:
                torch.set_num_threads(threads)

    def _parts(self, batch: Batch, num_global: int | None) -> tuple[list[Batch], int]:
        """Return the parts of a batch, and how many of them count.

        If all ranks compute each part together, one with fewer parts repeats an example.
        """
        micro = self._micro_batch_size
        if self.gain is not None and self._world.is_alone:
            half = -(-batch.ids.numel() // 2)
            micro = min(micro or half, half)
        parts = list(split_batch(batch, micro))
        num_parts = len(parts)
        if self._micro_batch_size is not None and isinstance(self._average, DividedGradients):
            most = -(-(num_global or 0) // self._world.size)  # examples of a rank
            num_missing = max(0, -(-most // self._micro_batch_size) - num_parts)
            parts += [batch.rows(slice(0, 1))] * num_missing
        return parts, num_parts

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Take the steps of a block without the other ranks, and exchange nothing with them.

        For measurements: unless the learning rate is 0, the weights of the ranks differ afterwards.
        """
        average, world = self._average, self._world
        self._average, self._world = None, ALONE
        set_exchanged(self._model, False)
        try:
            yield
        finally:
            self._average, self._world = average, world
            set_exchanged(self._model, True)

    def close(self) -> None:
        """End what computes the steps beside this process; here, remove hooks from the weights."""
        if self.gain is not None:
            self.gain.close()

    def settle(self) -> None:
        """Wait until nothing outside of a step changes the weights; nothing does here."""

    def take_worker_stats(self) -> Mapping[str, Any]:
        """Return what workers did since the last call, for the log; empty without workers."""
        return {}

    def _sending(self, is_last: bool, weight: float) -> AbstractContextManager[Any]:
        """Return the context of one part of a step: gradients are sent with the last one."""
        if self._average is None:
            return nullcontext()
        return self._average.accumulating(is_last, weight)

    def _zero(self) -> Tensor | float:
        if self._is_free:
            return 0.0
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _read(self, value: Tensor) -> Tensor | float:
        return value.item() if self._is_free else value

    def _own_losses(self, batch: Batch) -> Any:
        return self._task.loss(self._model, batch)

    def _losses_of_replicas(self, batch: Batch, step: int) -> Any:
        """Compute losses on all devices; each draws the random numbers that a rank would draw."""
        assert self._replicas is not None
        devices, num = self._replicas.devices, batch.ids.numel()
        parts = [batch.rows(slice(*rank_slice(num, k, len(devices)))) for k in range(len(devices))]

        def begin(part: int) -> None:
            if self._is_random and part > 0:
                seed_step(self._seed, step, part, devices[part])

        return self._replicas([part for part in parts if part.ids.numel()], begin)

    def _losses(self, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        if self._replicas is not None:
            result = self._losses_of_replicas(batch, step)
        else:
            result = (self._average or self._own_losses)(batch)
        losses, logs = result if isinstance(result, tuple) else (result, {})
        if not self._is_checked:
            wanted = (batch.ids.numel(),)
            if tuple(losses.shape) != wanted:
                raise UsageError(
                    f"loss() of the Task returned a tensor of shape {tuple(losses.shape)} instead "
                    f"of {wanted}",
                    where=type(self._task).__name__,
                    why="stepladder averages the losses itself, over batches of different sizes.",
                    fix="Return one loss for each example, such as F.cross_entropy(…, "
                    "reduction='none').",
                )
            self._is_checked = True
        return losses, logs

    def peek_loss(self, otherwise: float) -> float:
        """Return the mean loss since the last call of take_window, or `otherwise` without a step.

        Waits for the device.
        """
        return float(self._loss_sum) / self._num_examples if self._num_examples else otherwise

    def has_bad_loss(self) -> bool:
        """Return True if a loss of this rank since the last call of take_window was not finite.

        Waits for the device.
        """
        return not math.isfinite(float(self._loss_sum))

    def take_window(self) -> WindowMeans:
        """Return the means since the last call, over all ranks, and reset them.

        Waits for the device, and is a collective.
        """
        logs = {f"log.{name}": float(value) for name, value in self._log_sums.items()}
        sums = {"loss": float(self._loss_sum), "num": float(self._num_examples), **logs}
        sums = sum_of(self._world, sums)
        num_examples = int(sums["num"])
        n = max(num_examples, 1)
        means = WindowMeans(
            loss=sums["loss"] / n if num_examples else math.nan,
            logs={name: sums[f"log.{name}"] / n for name in self._log_sums},
            grad_norm=self._update.read_grad_norm(),
            num_examples=num_examples,
        )
        self.clear_window()
        return means

    @property
    def num_in_window(self) -> int:
        """Number of examples since the last call of take_window, of this rank."""
        return self._num_examples

    def clear_window(self) -> None:
        """Reset the sums of the current window."""
        self._loss_sum = self._zero()
        self._log_sums.clear()
        self._num_examples = 0

    def gather_window(self) -> None:
        """Move the sums of the current window to rank 0; a collective, before they are saved."""
        if self._world.is_alone:
            return
        named = {name: float(value) for name, value in self._log_sums.items()}
        sums = {"loss": float(self._loss_sum), "num": float(self._num_examples)}
        sums = sum_of(self._world, {**sums, **{f"log.{name}": v for name, v in named.items()}})
        share = 1.0 if self._world.is_main else 0.0
        to = partial(torch.tensor, dtype=torch.float64, device=self._device)
        self._loss_sum = self._read(to(share * sums["loss"]))
        self._log_sums = {name: self._read(to(share * sums[f"log.{name}"])) for name in named}
        self._num_examples = int(share * sums["num"])

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

"""One of many trainings that take their steps together: what it reads, and where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.data.order.order import Order
from stepladder.data.reading.reader import Reader
from stepladder.ladder.accuracy.folds import Parts, learnt_sample
from stepladder.ladder.trainings.head_task import HeadTask
from stepladder.ladder.trainings.trial_training import DIVERGED, judged_by
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.training.evaluate import Evaluation, evaluate
from stepladder.training.setup.build import make_held_out_reader, make_train_reader
from stepladder.training.stopping import EarlyStopping

Weights = dict[str, Tensor]

_MAX_ROWS_KEPT: Final = 2048  # of an epoch; a longer one takes longer to learn than to shuffle
_MAX_EPOCHS_KEPT: Final = 4096  # 64 MB at most


@dataclass(kw_only=True)
class StackedEnd:
    """Where a training ends by one way to stop, and with which weights.

    Attributes:
        weights: those that it ends with, once it has ended.
        steps, num_validations: until then.
    """

    config: StoppingConfig
    stopping: EarlyStopping
    best_value: float = math.inf
    best: Weights | None = None
    weights: Weights | None = None
    steps: int = 0
    num_validations: int = 0

    @property
    def wants_validations(self) -> bool:
        """Whether anybody would ask what they say."""
        return self.weights is None and (self.config.early or self.config.restore_best)

    def look(self, result: Evaluation, weights: Weights) -> None:
        """Judge a validation, and keep the weights if it is the best one."""
        values = result.monitored(self.config.monitor)
        self.stopping.judge(values)
        value = float(values.mean(dtype="float64"))
        if value < self.best_value:
            self.best_value, self.best = value, weights

    def end(self, weights: Callable[[], Weights], *, steps: int) -> None:
        """Keep the weights that training ends with here."""
        wants_best = self.config.restore_best and self.best is not None
        self.weights = self.best if wants_best else weights()
        self.steps = steps


@dataclass(kw_only=True)
class StackedRun:
    """One of the trainings.

    Attributes:
        inputs, targets: all its training features, (n, ...), and their targets.
        ends: one for each way to stop.
    """

    recipe: Recipe
    task: HeadTask
    head: nn.Module
    parts: Parts
    device: torch.device
    reader: Reader
    val_reader: Reader | None
    judge_reader: Reader | None
    inputs: Tensor
    targets: Tensor
    ends: tuple[StackedEnd, ...]
    epoch: int = 0
    step: int = 0
    is_finite: bool = True
    _rows: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @classmethod
    def begin(
        cls,
        recipe: Recipe,
        task: HeadTask,
        parts: Parts,
        device: torch.device,
        ways: Sequence[StoppingConfig],
    ) -> StackedRun:
        """Open what a training reads, and its first epoch."""
        sources = parts.sources
        all_rows = sources.train.read(np.arange(len(sources.train)))
        run = cls(
            recipe=recipe,
            task=task,
            head=task.build_model(recipe).to(device),
            parts=parts,
            device=device,
            reader=make_train_reader(recipe, sources.train),
            val_reader=make_held_out_reader(recipe, sources.val),
            judge_reader=make_held_out_reader(recipe, sources.test),
            inputs=all_rows.inputs.to(device),
            targets=all_rows.targets.to(device),
            ends=tuple(StackedEnd(config=way, stopping=EarlyStopping(way)) for way in ways),
        )
        run._open_epoch()
        return run

    def close(self) -> None:
        """End the readers."""
        for reader in (self.reader, self.val_reader, self.judge_reader):
            if reader is not None:
                reader.close()

    @property
    def steps_left(self) -> int:
        """Steps until the epoch ends, or training by its steps."""
        left = len(self._rows)
        limit = self.recipe.schedule.max_steps
        return left if limit is None else min(left, limit - self.step)

    def take(self, num_steps: int) -> NDArray[np.int64]:
        """Give the rows of the next steps, (num_steps, batch); -1 where a batch is shorter."""
        rows, self._rows = self._rows[:num_steps], self._rows[num_steps:]
        self.step += num_steps
        return rows

    @property
    def is_over(self) -> bool:
        """Whether it has ended in every way."""
        return all(end.weights is not None for end in self.ends)

    def end_segment(self, weights: Callable[[], Weights], loss: float) -> None:
        """Look at the weights where an epoch ends, and keep them where training does."""
        self.is_finite = self.is_finite and math.isfinite(loss)
        is_epoch_end = not len(self._rows)
        if is_epoch_end:
            self.epoch += 1
            if self.is_finite and self._is_validation_due():
                self._validate(weights)
        schedule = self.recipe.schedule
        is_last_step = schedule.max_steps is not None and self.step >= schedule.max_steps
        is_last = is_last_step or self.epoch >= schedule.max_epochs or not self.is_finite
        for end in self.ends:
            if end.weights is None and (is_last or end.stopping.is_exhausted):
                end.end(weights, steps=self.step)
        if is_epoch_end and not self.is_over:
            self._open_epoch()

    def outcomes(self) -> tuple[Outcome, ...]:
        """Judge the weights that it ended with, in each way."""
        return tuple(self._outcome(end) for end in self.ends)

    def _outcome(self, end: StackedEnd) -> Outcome:
        is_finite = self.is_finite or end.steps < self.step
        outcome = Outcome(
            seed=self.recipe.seed,
            fold=self.parts.fold,
            epochs=end.steps / self.reader.steps_per_epoch,
            num_validations=end.num_validations,
            provenance=Provenance.REPLAYED,
            why_not=None if is_finite else DIVERGED,
        )
        if not is_finite or self.judge_reader is None or end.weights is None:
            return outcome
        held_out = self._evaluate(self.judge_reader, end.weights)
        reader = make_held_out_reader(self.recipe, learnt_sample(self.parts))
        assert reader is not None
        with closing(reader):
            learnt = self._evaluate(reader, end.weights)
        return judged_by(outcome, held_out, learnt, self.parts)

    def _open_epoch(self) -> None:
        reader, size = self.reader, self.reader.global_batch_size
        num = reader.num_examples
        is_kept = num <= _MAX_ROWS_KEPT
        rows = (_known_rows if is_kept else _draw_rows)(reader.order, self.epoch, num)
        padded = np.full(reader.steps_per_epoch * size, -1, dtype=np.int64)
        padded[: len(rows)] = rows
        self._rows = padded.reshape(-1, size)

    def _is_validation_due(self) -> bool:
        if self.val_reader is None:
            return False
        return self.epoch % self.recipe.stopping.validate_every_epochs == 0

    def _validate(self, weights: Callable[[], Weights]) -> None:
        going_on = [end for end in self.ends if end.weights is None]
        for end in going_on:
            end.num_validations += 1
        asking = [end for end in going_on if end.wants_validations]
        if self.val_reader is None or not asking:
            return
        now = weights()
        result = self._evaluate(self.val_reader, now)
        for end in asking:
            end.look(result, now)

    def _evaluate(self, reader: Reader, weights: Weights) -> Evaluation:
        self.head.load_state_dict(weights, strict=False)
        precision = self.recipe.device.precision
        return evaluate(self.task, self.head, reader, device=self.device, precision=precision)


def _draw_rows(order: Order, epoch: int, num_examples: int) -> NDArray[np.int64]:
    """Give the rows of an epoch."""
    rows: NDArray[np.int64] = order.samples(epoch, 0, num_examples)
    return rows


_known_rows = lru_cache(maxsize=_MAX_EPOCHS_KEPT)(_draw_rows)
"""The same, kept: other recipes' trainings of the same seed and fold ask again. To read only."""

"""A run in progress: what the loop calls at its borders (log, validate, commit, stop)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from stepladder.config.options import RunConfig
from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Reader
from stepladder.errors import DataError, DivergedError
from stepladder.optim.schedule import lr_at
from stepladder.task.contract import Task
from stepladder.training.baseline import STOP_REASON, Against, examples_of
from stepladder.training.best import BestWeights
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.saving import save_session
from stepladder.training.clock import STEP_PHASES, Clock, Phase, Timeline
from stepladder.training.evaluate import Evaluation, EvaluationCancelled, evaluate
from stepladder.training.output.display import Display
from stepladder.training.output.events import EventLog
from stepladder.training.output.progress import progress_of, reading_totals
from stepladder.training.position import Position
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import Stage, frozen_names
from stepladder.training.step import Step
from stepladder.training.stopping import EarlyStopping
from stepladder.training.update import Update

MAX_CHECKPOINT_FRAC = 0.02


class Taken(NamedTuple):
    """Which samples a step used: positions [start, stop) of an epoch's order."""

    step: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """Where the clock stood at the last log line."""

    steps_s: float
    num_examples: int
    timeline: Timeline


@dataclass(kw_only=True)
class Session:
    """Everything one stage of a run works with.

    The parts that change with the stage (step, update, frozen) are replaced by `run.train`.
    """

    recipe: Recipe
    config: RunConfig
    task: Task
    model: nn.Module
    device: torch.device
    memory_format: torch.memory_format | None
    train_reader: Reader
    val_reader: Reader | None
    clock: Clock
    events: EventLog
    display: Display
    guard: SignalGuard
    checkpoints: Checkpoints
    position: Position
    stopping: EarlyStopping
    best: BestWeights
    stage: Stage
    step: Step
    update: Update
    against: Against = field(default_factory=Against)
    frozen: list[nn.Module] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    last_loss: float = math.nan
    last_accuracy: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    committed_step: int = -1
    is_validation_pending: bool = False
    _window: Window | None = None
    _unchecked: list[Taken] = field(default_factory=list)
    _last_commit: float = field(default_factory=time.monotonic)
    _last_commit_took_s: float = 0.0

    @property
    def num_train(self) -> int:
        """Training examples of an epoch."""
        return self.train_reader.num_examples

    def lr(self) -> float:
        """Learning rate of the next step."""
        return lr_at(
            self.position.stage_step,
            base=self.stage.lr,
            schedule=self.recipe.schedule,
            steps_per_epoch=self.train_reader.steps_per_epoch,
        )

    # -- at each step -----------------------------------------------------------------------

    def count(self, num_examples: int) -> bool:
        """Count a step on num_examples samples, and the epoch if it ends with it.

        Returns:
            Whether the epoch ended.
        """
        at = self.position
        start = at.offset
        self._unchecked.append(Taken(at.step, at.epoch, start, start + num_examples))
        at.take_step(num_examples)
        is_epoch_end = at.offset >= self.num_train
        if is_epoch_end:
            at.end_epoch()
        return is_epoch_end

    def show(self) -> None:
        """Tell the display where the run is (only when it is time to draw)."""
        if self.display.is_due():
            self.display.step(progress_of(self))

    def samples_per_s(self) -> float:
        """Training samples a second over the run, validation and checkpoints left out."""
        seconds = sum(self.clock.total_s(phase) for phase in STEP_PHASES)
        return self.position.num_examples_seen / seconds if seconds > 0 else 0.0

    def is_log_due(self, num_examples: int) -> bool:
        """Say whether to log after a step on so many examples.

        An epoch is cut into even windows of at most log_every steps, so that each mean stands on
        about as many steps as the others; the last one ends with the epoch.
        """
        steps = self.train_reader.steps_per_epoch
        windows = -(-steps // self.config.log_every)
        used = self.position.offset + num_examples
        step = -(-used // self.recipe.batch.global_batch_size)
        return step * windows // steps > (step - 1) * windows // steps

    # -- at borders -------------------------------------------------------------------------

    def log(self) -> None:
        """Write what was learnt and read, after looking at the flag for losses not finite.

        Raises:
            DivergedError: if a loss was not finite.
        """
        with self.clock.phase(Phase.LOGGING):
            self.check_finite()
            means = self.step.take_window()
            self.last_loss = means.loss
            self.last_accuracy = means.logs.get("accuracy")
            rate, wait_frac = self._since_last_log()
            self.events.write(
                "train",
                step=self.position.step,
                epoch=self.position.epoch,
                train_loss=means.loss,
                **{f"train_{name}": value for name, value in means.logs.items()},
                learning_rate=self.lr(),
                **({} if means.grad_norm is None else {"grad_norm": means.grad_norm}),
                **{
                    "throughput/samples_per_sec": rate,
                    "time_metrics/data_loading(%)": 100 * wait_frac,
                },
            )
            if totals := reading_totals(self.train_reader):
                self.events.write(
                    "reader", step=self.position.step, epoch=self.position.epoch, **totals
                )

    def _since_last_log(self) -> tuple[float, float]:
        """Give samples a second and the share of data wait since the last log line."""
        timeline, seen = self.clock.truth(), self.position.num_examples_seen
        steps_s = sum(self.clock.total_s(phase) for phase in STEP_PHASES)
        before, self._window = (
            self._window,
            Window(steps_s=steps_s, num_examples=seen, timeline=timeline),
        )
        if before is None:
            return self.samples_per_s(), timeline.data_wait_frac()
        rate = (seen - before.num_examples) / max(steps_s - before.steps_s, 1e-9)
        return rate, timeline.since(before.timeline).data_wait_frac()

    def check_finite(self) -> None:
        """Read the flag of the first step that was not finite.

        Raises:
            DivergedError: if there was one; names the step and its samples, recomputed from the
                order.
        """
        bad = self.update.read_first_bad()
        taken = [entry for entry in self._unchecked if entry.step == bad]
        self._unchecked.clear()
        if bad is None:
            return
        rows = [
            int(row)
            for entry in taken
            for row in self.train_reader.order.samples(entry.epoch, entry.start, entry.stop)
        ]
        source = self.train_reader.source
        named = ", ".join(f"{row} ({source.describe(row)})" for row in rows[:8])
        self.events.write(
            "diverged", step=bad, epoch=self.position.epoch, first_bad_step=bad, sample_ids=rows
        )
        lower = f"Lower the learning rate (--batch.lr {self.stage.lr / 10:g}), clip the gradient "
        raise DivergedError(
            f"the loss or its gradient is not a finite number at step {bad}",
            where=str(self.config.dir),
            why=f"Its samples: {named}{', ...' if len(rows) > 8 else ''}. No weight was changed "
            "by that step or after it; the last checkpoint is unharmed.",
            fix=f"{lower}(--optimizer.clip-norm 1), or look at these samples."
            if bad
            else "No weight has moved yet: look at these samples and at the loss, with "
            "`stepladder check`.",
        )

    def refuse_short_epoch(self) -> NoReturn:
        """Stop where the data ends before the epoch: it would begin again for ever.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"the training data ended after {self.position.offset:,} examples, and its __len__ "
            f"says {self.num_train:,}",
            where=type(self.task).__name__,
            why="The length of an epoch, the schedule and the time left are counted by it.",
            fix="Let __len__ give the number of examples that __iter__ yields.",
        )

    def is_validation_due(self, is_epoch_end: bool) -> bool:
        """Say whether to validate now: after so many steps, or at the end of so many epochs."""
        if self.val_reader is None:
            return False
        every_steps = self.recipe.stopping.validate_every_steps
        if every_steps is not None:
            return self.position.stage_step % every_steps == 0
        return (
            is_epoch_end
            and self.position.stage_epoch % self.recipe.stopping.validate_every_epochs == 0
        )

    def validate(self) -> None:
        """Measure the validation split, judge it, and keep the weights if they are among the best.

        A signal cuts it short; it is then pending, and a resumed run begins with it.
        """
        assert self.val_reader is not None
        self.check_finite()
        with self.clock.phase(Phase.VALIDATION):
            try:
                result = self.evaluate(self.val_reader)
            except EvaluationCancelled:
                self.is_validation_pending = True
                return
            if self.is_validation_pending:  # the checkpoint says so, and must not for long
                self.is_validation_pending, self.committed_step = False, -1
            judged = self.stopping.judge(result.monitored(self.recipe.stopping.monitor))
            value = float(result.monitored(self.recipe.stopping.monitor).mean(dtype="float64"))
            at, seen = self.position, self.position.num_examples_seen
            compared = self.against.judge(
                result, self.recipe.stopping.monitor, seen=seen, wall_s=self.clock.wall_s()
            )
            self.best.offer(
                value if math.isfinite(value) else math.inf,
                step=at.step,
                epoch=at.epoch,
                weights=self.learned_weights,
            )
        loss, train_loss = result.loss(), self.step.peek_loss(self.last_loss)
        fields = {
            "step": at.step,
            "epoch": at.epoch,
            "val_loss": loss.mean,
            "val_loss_sem": loss.sem,
            **{f"val_{name}": value for name, value in result.values.items()},
            "is_best": judged.is_best,
            "improvement": judged.improvement,
            "improvement_sem": judged.improvement_sem,
            "num_without_improvement": judged.num_without_improvement,
            "samples_seen": seen,
            **compared,
        }
        with self.clock.phase(Phase.LOGGING):
            self.events.write("validation", **fields, **examples_of(result))
            self.display.validation({**fields, "train_loss": train_loss})

    def evaluate(self, reader: Reader, *, max_batches: int | None = None) -> Evaluation:
        """Measure the model on a split."""
        return evaluate(
            self.task,
            self.model,
            reader,
            device=self.device,
            precision=self.recipe.device.precision,
            memory_format=self.memory_format,
            max_batches=max_batches,
            is_cancelled=lambda: bool(self.guard.requested),
        )

    def learned_weights(self) -> dict[str, Tensor]:
        """Give the model's tensors that can change in this stage, by name."""
        frozen = frozen_names(self.model, self.frozen)
        state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in frozen}

    def frozen_weights(self) -> dict[str, Tensor]:
        """Give the model's tensors that cannot change in this stage, by name."""
        frozen = frozen_names(self.model, self.frozen)
        return {name: t for name, t in self.model.state_dict().items() if name in frozen}

    def is_commit_due(self) -> bool:
        """Say whether enough time has passed since the last checkpoint.

        Where a save takes long, saves are rarer than asked for, so that they stay under 2 % of the
        run; 0 asks for one after every step, whatever it takes.
        """
        every_s = self.config.checkpoint_every_s
        if every_s > 0:
            every_s = max(every_s, self._last_commit_took_s / MAX_CHECKPOINT_FRAC)
        return time.monotonic() - self._last_commit >= every_s

    def commit(self) -> None:
        """Write a checkpoint, the best weights that are only in memory first, and prune old ones.

        Raises:
            DivergedError: if a loss was not finite; nothing is written then.
            ResourceError: if it cannot be written; older checkpoints stay.
        """
        self.check_finite()
        if self.committed_step == self.position.step and not list(self.best.uncommitted()):
            return
        with self.clock.phase(Phase.CHECKPOINT):
            saved = save_session(self)
            self._last_commit = time.monotonic()
            self._last_commit_took_s = saved.seconds
            self.committed_step = self.position.step
            self.events.write(
                "checkpoint",
                step=self.position.step,
                epoch=self.position.epoch,
                name=saved.name,
                seconds=saved.seconds,
                num_bytes=saved.num_bytes,
            )

    def reason_to_stop(self) -> str | None:
        """Say why the stage should end now, or None."""
        at, schedule = self.position, self.recipe.schedule
        steps, time_s = schedule.max_steps, schedule.max_time_s
        reasons = (
            ("signal", bool(self.guard.requested)),
            ("early_stopping", self.stopping.is_exhausted),
            (STOP_REASON, self.against.is_exhausted),
            ("max_epochs", at.stage_epoch >= schedule.max_epochs),
            ("max_steps", steps is not None and at.stage_step >= steps),
            ("max_time", time_s is not None and self.clock.wall_s() >= time_s),
        )
        return next((reason for reason, holds in reasons if holds), None)

    def warn(self, message: str) -> None:
        """Show a warning and keep it in the events and the summary."""
        if message in self.warnings:
            return
        self.warnings.append(message)
        self.display.warning(message)
        self.events.write(
            "warning", step=self.position.step, epoch=self.position.epoch, message=message
        )

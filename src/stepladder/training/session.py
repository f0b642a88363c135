"""A run in progress: training with display, logs, checkpoints and interruption."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from stepladder.config.options import RunConfig
from stepladder.data.order.hosts import rank_slice
from stepladder.data.reading.reader import Reader, ReaderStats
from stepladder.errors import DivergedError
from stepladder.machine.activity import on_its_own
from stepladder.parallel.agreement import Wishes
from stepladder.training.baseline import STOP_REASON, examples_of
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.training_state import RunState, save_training
from stepladder.training.clock import STEP_PHASES, Phase, Timeline
from stepladder.training.course import EARLY_STOPPING
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.display import Display, ProgressState
from stepladder.training.output.events import EventLog
from stepladder.training.ranks.hosts import received_by_host
from stepladder.training.ranks.use import UseMeter, use_by_rank
from stepladder.training.signals import SignalGuard
from stepladder.training.stage import stages_of
from stepladder.training.stopping import Judgement, Kept, Weights
from stepladder.training.training import Training

MAX_CHECKPOINT_FRAC = 0.02


def is_log_due(run: Training, num_examples: int, *, log_every: int) -> bool:
    """Return True if a log line is due after a step on `num_examples` examples.

    An epoch is split into equal windows of at most log_every steps, so that all means are over
    about the same number of steps; the last window ends with the epoch.
    """
    steps = run.train_reader.steps_per_epoch
    windows = -(-steps // log_every)
    used = run.position.offset + num_examples
    step = -(-used // run.recipe.batch.global_batch_size)
    return step * windows // steps > (step - 1) * windows // steps


def progress_of(run: Training, *, last_loss: float, last_accuracy: float | None) -> ProgressState:
    """Return the progress of a run; on a CPU with the current loss, which is free to read.

    Args:
        last_loss, last_accuracy: of the last log line.
    """
    at, schedule, reader = run.position, run.recipe.schedule, run.train_reader
    per_s = run.samples_per_s()
    epoch_s = run.num_train / per_s if per_s else math.nan
    left_s = epoch_s * (1 - at.offset / run.num_train)
    validation_s = run.clock.total_s(Phase.VALIDATION) / max(at.epoch, 1)
    stages_left = len(stages_of(run.recipe.train, run.recipe.batch)) - at.stage
    later = (stages_left - 1) * schedule.max_epochs
    max_epochs = at.epoch - at.stage_epoch + run.planned_epochs + later
    epochs_left = max(max_epochs - at.epoch - 1, 0)
    is_free = run.device.type == "cpu"  # elsewhere reading the loss waits for the device
    files = reader.files_stats()
    stats = ReaderStats() if reader.is_held else reader.stats  # examples in memory are not read
    is_epoch_over = at.offset == 0 and at.epoch > 0  # the next one may not follow
    return ProgressState(
        epoch=at.epoch if is_epoch_over else at.epoch + 1,
        max_epochs=max_epochs,
        step=at.step,
        step_in_epoch=reader.steps_per_epoch
        if is_epoch_over
        else math.ceil(at.offset / run.recipe.batch.global_batch_size),
        steps_per_epoch=reader.steps_per_epoch,
        loss=run.parts.step.peek_loss(last_loss) if is_free else last_loss,
        accuracy=last_accuracy,
        samples_per_s=per_s,
        data_wait_frac=run.clock.truth().data_wait_frac(),
        read_bytes_per_s=_bytes_per_s(reader, per_s),
        cache_hit_frac=files.hit_frac if files is not None else None,
        fetch_example_s=stats.fetch_example_s,
        decode_example_s=stats.decode_example_s,
        epoch_left_s=left_s,
        may_stop_early=run.recipe.stopping.early and run.val_reader is not None,
        run_left_s=left_s + validation_s + epochs_left * (epoch_s + validation_s),
    )


def reading_totals(reader: Reader) -> dict[str, float]:
    """Return what reading took since the attempt began; empty if nothing was read.

    Features and images in memory are not read again.
    """
    stats, files = reader.stats, reader.files_stats()
    if not stats.num_read:
        return {}
    totals: dict[str, float] = {
        "num_read": stats.num_read,
        "read_bytes": stats.num_bytes,
        "fetch_s": stats.fetch_s,
        "decode_s": stats.decode_s,
        "wait_s": stats.wait_s,
        "num_threads": reader.num_threads,
    }
    if files is None:
        return totals
    return {
        **totals,
        "num_requests": files.num_requests,
        "num_retries": files.num_retries,
        "received_bytes": files.num_bytes,
        "cache_hits": files.num_hits,
        "cache_misses": files.num_misses,
    }


def _bytes_per_s(reader: Reader, samples_per_s: float) -> float | None:
    """Return the stored bytes read per second by steps; None: in memory, or unknown."""
    if reader.is_held or reader.stats.example_bytes is None:
        return None
    return reader.stats.example_bytes * samples_per_s


def _its_examples(of_rank: str) -> str:
    return f"The examples of {of_rank} in this step" if of_rank else "The examples of this step"


class Taken(NamedTuple):
    """The samples that a step used: positions [start, stop) in the order of an epoch."""

    step: int
    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Window:
    """The clock at the last log line."""

    steps_s: float
    num_examples: int
    timeline: Timeline


@dataclass(kw_only=True)
class Session(Training):
    """Training with a run folder.

    Attributes:
        state: what is saved in addition to the training.
        committed_step: of the last checkpoint.
        use: how busy the device of this rank is.
    """

    config: RunConfig
    events: EventLog
    display: Display
    guard: SignalGuard
    checkpoints: Checkpoints
    state: RunState
    committed_step: int = -1
    use: UseMeter = field(default_factory=UseMeter)
    _window: Window | None = None
    _unchecked: list[Taken] = field(default_factory=list)
    _last_commit: float = field(default_factory=time.monotonic)
    _last_commit_took_s: float = 0.0

    # -- at each step -----------------------------------------------------------------------

    def count(self, num_examples: int, *, num_steps: int = 1) -> bool:
        """Count a step, and record its samples until the loss is known to be finite."""
        at = self.position
        self._unchecked.append(Taken(at.step, at.epoch, at.offset, at.offset + num_examples))
        return super().count(num_examples, num_steps=num_steps)

    def show(self) -> None:
        """Update the display, if it is due."""
        if self.display.is_due():
            loss, accuracy = self.state.last_loss, self.state.last_accuracy
            self.display.step(progress_of(self, last_loss=loss, last_accuracy=accuracy))

    def is_log_due(self, num_examples: int) -> bool:
        """Return True if a log line is due after a step on `num_examples` examples."""
        return is_log_due(self, num_examples, log_every=self.config.log_every)

    # -- between steps -------------------------------------------------------------------------

    def log(self) -> None:
        """Write a log line of training and reading, after a check for non-finite losses.

        Raises:
            DivergedError: if a loss was not finite.
        """
        with self.clock.phase(Phase.LOGGING):
            self.check_finite()
            means = self.parts.step.take_window()
            received = received_by_host(self.downloaded, self.world)
            used = self.use.shares(self.clock, self.world)
            self.state.last_loss = means.loss
            self.state.last_accuracy = means.logs.get("accuracy")
            rate, wait_frac = self._since_last_log()
            self.events.write(
                "train",
                step=self.position.step,
                epoch=self.position.epoch,
                train_loss=means.loss,
                **{f"train_{name}": value for name, value in means.logs.items()},
                learning_rate=self.lr(),
                **({"lr_gain": self.gain} if self.is_adaptive else {}),
                **({} if means.grad_norm is None else {"grad_norm": means.grad_norm}),
                **{
                    "throughput/samples_per_sec": rate,
                    "time_metrics/data_loading(%)": 100 * wait_frac,
                },
            )
            if used:
                self.events.write(
                    "devices",
                    step=self.position.step,
                    epoch=self.position.epoch,
                    **use_by_rank(used, self.world),
                )
            if stats := self.parts.step.take_worker_stats():
                at = self.position
                self.events.write("workers", step=at.step, epoch=at.epoch, **stats)
            if totals := reading_totals(self.train_reader):
                by_host = {"received_bytes_by_host": received} if received else {}
                self.events.write(
                    "reader",
                    step=self.position.step,
                    epoch=self.position.epoch,
                    **totals,
                    **by_host,
                )

    def _since_last_log(self) -> tuple[float, float]:
        """Return samples per second and the fraction of data wait since the last log line."""
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
        """Check for a step whose loss or gradient was not finite.

        Raises:
            DivergedError: if there was one; with the step and its samples.
        """
        try:
            super().check_finite()
        finally:
            self._unchecked.clear()

    def diverged(self, step: int, bad_ranks: Mapping[int, str]) -> DivergedError:
        """Write the event of a non-finite step, and return the error.

        Its samples are those of the ranks whose loss was not finite, if these are known.
        """
        rows = [
            int(row)
            for entry in self._unchecked
            if entry.step == step
            for start, stop in self._parts_of(entry, bad_ranks)
            for row in self.train_reader.order.samples(entry.epoch, start, stop)
        ]
        if self.recipe.asynchronous.is_on:
            rows = []  # workers read others
        source = self.train_reader.source
        named = ", ".join(f"{row} ({source.describe(row)})" for row in rows[:8])
        self.events.write(
            "diverged",
            step=step,
            epoch=self.position.epoch,
            first_bad_step=step,
            sample_ids=rows,
            **({} if self.world.is_alone else {"ranks": list(bad_ranks)}),
        )
        of_rank = ", ".join(f"rank {rank} on {host}" for rank, host in bad_ranks.items())
        lower = f"Lower the learning rate (--batch.lr {self.stage.lr / 10:g}), clip the gradient "
        return DivergedError(
            f"the loss or its gradient became NaN or infinite at step {step} of the training"
            + (f", first on {of_rank}" if of_rank else ""),
            where=str(self.config.dir),
            why=(
                f"{_its_examples(of_rank)} were {named}{', ...' if len(rows) > 8 else ''}. The "
                "weights are still those before this step, and the last checkpoint is intact."
                if rows
                else "The last checkpoint is intact."
            ),
            fix=f"{lower}(--optimizer.clip-norm 1), or inspect these samples."
            if step
            else "No weight has changed yet: inspect these samples, and check the loss with "
            "`stepladder check`.",
        )

    def _parts_of(self, taken: Taken, bad_ranks: Mapping[int, str]) -> list[tuple[int, int]]:
        """Return the positions [start, stop) that ranks used of a step; all, if none is given."""
        if not bad_ranks:
            return [(taken.start, taken.stop)]
        num = taken.stop - taken.start
        parts = [rank_slice(num, rank, self.world.size) for rank in bad_ranks]
        return [(taken.start + start, taken.start + stop) for start, stop in parts]

    def wishes(self) -> Wishes:
        """Return what rank 0 wants: to end after a signal, by time or by the baseline, or to save.

        Also the signal of another rank's host is handled by rank 0.
        """
        limit_s = self.recipe.schedule.max_time_s
        return Wishes(
            signal=self.guard.requested,
            is_time_over=limit_s is not None and self.clock.wall_s() >= limit_s,
            is_worse=self.state.against.is_exhausted,
            is_commit_due=self._is_time_to_commit(),
        )

    def is_cancelled(self) -> bool:
        """Return True after a signal; a resumed run begins with the validation.

        Several ranks finish a validation, as they cannot agree in the middle of it.
        """
        return self.world.is_alone and bool(self.guard.requested)

    def validate(self) -> None:
        """Evaluate and judge the validation split; save a checkpoint if it was pending."""
        was_pending = self.is_validation_pending
        super().validate()
        if was_pending and not self.is_validation_pending:
            self.committed_step = -1

    def on_validation(self, result: Evaluation, judgement: Judgement) -> None:
        """Compare a validation with the baseline, and write its event."""
        at, seen = self.position, self.position.num_examples_seen
        with self.clock.phase(Phase.LOGGING):
            monitor = self.recipe.stopping.monitor
            compared = self.state.against.judge(
                result, monitor, seen=seen, wall_s=self.clock.wall_s()
            )
            loss = result.loss()
            fields = {
                "step": at.step,
                "epoch": at.epoch,
                "val_loss": loss.mean,
                "val_loss_sem": loss.sem,
                **{f"val_{name}": value for name, value in result.values.items()},
                "is_best": judgement.is_best,
                "improvement": judgement.improvement,
                "improvement_sem": judgement.improvement_sem,
                "num_without_improvement": judgement.num_without_improvement,
                "samples_seen": seen,
                **compared,
            }
            self.events.write("validation", **fields, **examples_of(result))
            train_loss = self.parts.step.peek_loss(self.state.last_loss)
            self.display.validation({**fields, "train_loss": train_loss})

    def is_commit_due(self) -> bool:
        """Return True if a checkpoint is due: by time, or as the ranks agreed."""
        return self._is_time_to_commit() if self.world.is_alone else self.agreed.is_commit_due

    def _is_time_to_commit(self) -> bool:
        """Return True if enough time has passed since the last checkpoint.

        Slow saves are made less often than configured, so that they take under 2 % of the run; 0
        means one after every step, however long it takes.
        """
        every_s = self.config.checkpoint_every_s
        if every_s > 0:
            every_s = max(every_s, self._last_commit_took_s / MAX_CHECKPOINT_FRAC)
        return time.monotonic() - self._last_commit >= every_s

    def commit(self) -> None:
        """Write the best weights that are only in memory, then a checkpoint; prune old ones.

        Raises:
            DivergedError: if a loss was not finite; then nothing is written.
            ResourceError: if it cannot be written; older checkpoints are kept.
        """
        self.check_finite()
        self.share_buffers()
        self.parts.step.gather_window()
        is_saved = self.committed_step == self.position.step
        is_needed = not is_saved or bool(list(self.rule.best.uncommitted()))
        if self.parts.divided is not None:  # the others send their parts
            is_needed = self.world.from_main(is_needed)
        if not is_needed:
            return
        with self.clock.phase(Phase.CHECKPOINT):
            with on_its_own("writing a checkpoint"):
                saved = save_training(self, self.state, self.checkpoints)
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

    def weights_of(self, kept: Kept) -> tuple[Weights, ...]:
        """Return kept weights, from memory or from disk."""
        if kept.weights is not None:
            return (kept.weights,)
        loaded = self.checkpoints.load(kept.name)
        return loaded.frozen, loaded.tensors["model"]

    def reason_to_stop(self) -> str | None:
        """Return why the stage should end now, or None."""
        if not self.world.is_alone:
            return self.agreed_reason_to_stop()
        if self.guard.requested:
            return "signal"
        reason = super().reason_to_stop()
        if reason == EARLY_STOPPING:
            return reason
        if self.state.against.is_exhausted:
            return STOP_REASON
        max_time_s = self.recipe.schedule.max_time_s
        if reason is None and max_time_s is not None and self.clock.wall_s() >= max_time_s:
            return "max_time"
        return reason

    def warn(self, message: str) -> None:
        """Show a warning, and add it to the events and the summary."""
        if message in self.state.warnings:
            return
        self.state.warnings.append(message)
        self.display.warning(message)
        self.events.write(
            "warning", step=self.position.step, epoch=self.position.epoch, message=message
        )

"""One stage of training with real steps."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader, Source
from stepladder.errors import DataError, DivergedError
from stepladder.models.sharded_tensors import assign_, assign_from_main_, is_sharded
from stepladder.parallel.agreement import NO_WISHES, Wishes, agree
from stepladder.parallel.world import ALONE, World
from stepladder.task.contract import Task
from stepladder.training.baseline import STOP_REASON
from stepladder.training.clock import STEP_PHASES, Clock, Phase
from stepladder.training.course import EARLY_STOPPING, Course, Position
from stepladder.training.evaluate import Evaluation, EvaluationCancelled, evaluate
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    StageParts,
    make_held_out_reader,
    make_stage_parts,
    make_train_reader,
)
from stepladder.training.stage import Stage, frozen_names, stages_of
from stepladder.training.stopping import Judgement, Kept, ValidationRule, Weights


@dataclass(kw_only=True)
class Training(Course):
    """A course with model, readers and step, but without run folder, display or checkpoints.

    Driven by `loop.fit`. A run overrides what happens between steps, but not the decisions.

    Attributes:
        parts: frozen modules, update and step; replaced when a stage begins.
        is_validation_pending: a validation was cancelled, and is done before the next step.
        world: the ranks that train together.
        agreed: what they last agreed, in a world of several.
        downloaded: the examples whose downloads are counted by host; None: they are not.
    """

    task: Task
    model: nn.Module
    device: torch.device
    memory_format: torch.memory_format
    clock: Clock
    parts: StageParts
    is_validation_pending: bool = False
    world: World = ALONE
    agreed: Wishes = NO_WISHES
    downloaded: Source | None = None

    @classmethod
    def open(
        cls,
        recipe: Recipe,
        task: Task,
        sources: Sources,
        *,
        model: nn.Module,
        device: torch.device,
        clock: Clock,
        stage: Stage,
        position: Position | None = None,
        num_kept: int = 1,
        world: World = ALONE,
        **own: Any,
    ) -> Self:
        """Create the readers, the step and the rules of a training.

        Args:
            model: as returned by `make_model`.
            stage: of the recipe.
            position: where it begins; None: at the first step.
            num_kept: number of best weights to keep.
            own: fields of a subclass.
        """
        reader = make_train_reader(recipe, sources.train, world)
        return cls(
            recipe=recipe,
            task=task,
            model=model,
            device=device,
            memory_format=MEMORY_FORMATS[recipe.device.memory_format],
            clock=clock,
            parts=make_stage_parts(
                recipe,
                stage,
                task,
                model,
                device=device,
                clock=clock,
                world=world,
                example=_example(recipe, reader, device),
            ),
            train_reader=reader,
            val_reader=make_held_out_reader(
                sources.val,
                recipe.batch,
                recipe.loader,
                recipe.data.where,
                world,
                hosts=recipe.data.hosts,
            ),
            world=world,
            stage=stage,
            position=position or Position(),
            rule=ValidationRule(recipe.stopping, num_kept=num_kept),
            **own,
        )

    def begin_next_stage(self) -> None:
        """Freeze and unfreeze weights for the next stage, and reset the patience count."""
        self.position.start_stage()
        self.parts.step.close()
        self.stage = stage = stages_of(self.recipe.train, self.recipe.batch)[self.position.stage]
        self.parts = make_stage_parts(
            self.recipe,
            stage,
            self.task,
            self.model,
            device=self.device,
            clock=self.clock,
            world=self.world,
            example=None if self.world.is_alone else self.stand_in(),
        )
        self.rule.stopping.reset_patience()

    def close(self) -> None:
        """Close the readers, and end workers."""
        self.parts.step.close()
        for reader in (self.train_reader, self.val_reader):
            if reader is not None:
                reader.close()

    @property
    def gain(self) -> float:
        """Steps of the base batch size that the next step is worth, as measured so far."""
        meter = self.parts.step.gain
        return 1.0 if meter is None else meter.gain.value

    @property
    def num_train(self) -> int:
        """Number of training examples in an epoch."""
        return self.train_reader.num_examples

    def samples_per_s(self) -> float:
        """Return the training samples per second so far, without validation and checkpoints."""
        seconds = sum(self.clock.total_s(phase) for phase in STEP_PHASES)
        return self.position.num_examples_seen / seconds if seconds > 0 else 0.0

    # -- with other ranks ----------------------------------------------------------------------

    def wishes(self) -> Wishes:
        """Return what this rank wants to happen after the next step; nothing here."""
        return Wishes()

    def pulse(self) -> tuple[int, str]:
        """Return the step, and the phase that is open."""
        lap = self.clock.open_lap
        return self.position.step, "" if lap is None else str(lap.phase)

    def agree(self) -> None:
        """Agree with the other ranks outside of a step: before the first, and after validations."""
        if self.world.is_alone:
            return
        if self.world.watcher is not None:
            self.world.watcher.watch(self.pulse)
        self.agreed = agree(self.world, self.wishes())

    def share_buffers(self) -> None:
        """Use the running statistics of rank 0 on all ranks, where a step changes them.

        Afterwards nothing changes the weights until the next step.
        """
        self.parts.step.settle()
        if self.world.is_alone:
            return
        frozen = frozen_names(self.model, self.parts.frozen)
        if self.parts.divided is not None:
            self.parts.divided.share_buffers(frozen)
        else:
            self.world.share_buffers(self.model, frozen)

    def stand_in(self) -> Batch:
        """Return a training example on the device, for a step without examples for this rank."""
        reader = self.train_reader
        return stand_in(reader.source, self.device, self.memory_format, row=reader.own_row())

    def num_in_step(self, batch: Batch) -> int:
        """Return the number of examples of the next step, over all ranks.

        Args:
            batch: this rank's part of them.
        """
        if self.world.is_alone:
            return batch.ids.numel()  # the data may end before its length
        left = self.num_train - self.position.offset
        return min(self.recipe.batch.global_batch_size, left)

    def augment(self, batch: Batch) -> Batch:
        """Augment this rank's part of a batch on the device.

        MixUp draws partners from the global batch, so all ranks get all of its examples, and each
        keeps its part of the result. Workers augment what they read themselves.
        """
        if self.recipe.asynchronous.is_on:
            return batch
        return augment_part(
            self.recipe,
            self.task,
            batch,
            epoch=self.position.epoch,
            device=self.device,
            world=self.world,
        )

    def take_step(self, batch: Batch, *, is_log_due: bool, num_examples: int) -> None:
        """Take a step.

        Args:
            batch: this rank's part of the step's examples, augmented; may be empty.
            num_examples: of the step, over all ranks.
        """
        step, at = self.parts.step, self.position.step
        if self.world.is_alone:
            step(batch, step=at, lr=self.lr(), wants_norm=is_log_due)
            return
        is_empty = batch.ids.numel() == 0
        step(
            self.stand_in() if is_empty else batch,
            step=at,
            lr=self.lr(),
            wants_norm=is_log_due,
            num_global=num_examples,
            is_stand_in=is_empty,
            wishes=self.wishes(),
        )
        self.agreed = step.agreed

    # -- between steps: what `loop.fit` calls, and a run overrides -----------------------------

    def show(self) -> None:
        """Show progress; does nothing here."""

    def is_log_due(self, num_examples: int) -> bool:
        """Return True if a step on `num_examples` is logged: here, the last one of an epoch."""
        return self.position.offset + num_examples >= self.num_train

    def log(self) -> None:
        """Write a log line; here, only check for non-finite losses.

        Raises:
            DivergedError: if a loss was not finite.
        """
        self.check_finite()

    def validate(self) -> None:
        """Evaluate the validation split, judge it, and keep the weights if they are the best.

        A cancelled validation becomes pending.

        Raises:
            DivergedError: if a loss was not finite.
        """
        assert self.val_reader is not None
        self.check_finite()
        self.share_buffers()
        with self.clock.phase(Phase.VALIDATION):
            try:
                result = self.evaluate(self.val_reader)
            except EvaluationCancelled:
                self.is_validation_pending = True
                return
            self.is_validation_pending = False
            at = self.position
            judgement = self.rule.judge(
                result, step=at.step, epoch=at.epoch, weights=self.copy_weights
            )
        self.on_validation(result, judgement)
        self.agree()

    def on_validation(self, result: Evaluation, judgement: Judgement) -> None:
        """Write the result of a validation; does nothing here."""

    def is_commit_due(self) -> bool:
        """Return True if a checkpoint is due: never here."""
        return False

    def commit(self) -> None:
        """Write a checkpoint; does nothing here."""

    def is_cancelled(self) -> bool:
        """Return True if an evaluation should be cancelled: never here."""
        return False

    def agreed_reason_to_stop(self) -> str | None:
        """Return why all ranks end the stage now, or None; the same on every rank."""
        if self.agreed.signal:
            return "signal"
        reason = Course.reason_to_stop(self)
        if reason == EARLY_STOPPING:
            return reason
        if self.agreed.is_worse:
            return STOP_REASON
        return "max_time" if reason is None and self.agreed.is_time_over else reason

    # -- non-finite losses ---------------------------------------------------------------------

    def check_finite(self) -> None:
        """Check for a step whose loss or gradient was not finite, which is so on all ranks or none.

        Raises:
            DivergedError: if there was one.
        """
        bad = self.parts.update.read_first_bad()
        if bad is None:
            return
        own = socket.gethostname() if self.parts.step.has_bad_loss() else None
        hosts = enumerate([] if self.world.is_alone else self.world.gather(own))
        raise self.diverged(bad, {rank: host for rank, host in hosts if host is not None})

    def diverged(self, step: int, bad_ranks: Mapping[int, str]) -> DivergedError:
        """Return the error of a non-finite step.

        Args:
            bad_ranks: the hosts of the ranks whose own loss was not finite; empty if this process
                is alone, or if only the gradient was not finite.
        """
        del bad_ranks
        return DivergedError(
            f"the loss or its gradient became NaN or infinite at step {step} of the training",
            where=type(self.task).__name__,
            fix=f"Lower the learning rate (--batch.lr {self.stage.lr / 10:g}), or clip the "
            "gradient (--optimizer.clip-norm 1).",
        )

    def refuse_short_epoch(self) -> NoReturn:
        """Raise an error if the data ends before the epoch, which would never end.

        Raises:
            DataError: always.
        """
        raise DataError(
            f"the training data ended after {self.position.offset:,} examples, but their __len__ "
            f"returns {self.num_train:,}",
            where=type(self.task).__name__,
            why="The length of an epoch and the learning-rate schedule are computed from __len__.",
            fix="Let __len__ of the dataset return the number of examples that __iter__ yields.",
        )

    # -- model and weights -----------------------------------------------------------------------

    def evaluate(self, reader: Reader, *, max_batches: int | None = None) -> Evaluation:
        """Evaluate the model on a split."""
        return evaluate(
            self.task,
            self.model,
            reader,
            device=self.device,
            precision=self.recipe.device.precision,
            memory_format=self.memory_format,
            max_batches=max_batches,
            is_cancelled=self.is_cancelled,
            world=self.world,
            divided=self.parts.divided,
            stand_in=lambda: stand_in(reader.source, self.device, self.memory_format),
        )

    def learned_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors that can change in this stage, by name."""
        frozen = frozen_names(self.model, self.parts.frozen)
        return {name: tensor for name, tensor in self._state().items() if name not in frozen}

    def frozen_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors that cannot change in this stage, by name."""
        frozen = frozen_names(self.model, self.parts.frozen)
        return {name: tensor for name, tensor in self._state().items() if name in frozen}

    def _state(self) -> dict[str, Tensor]:
        """Return the model's tensors by name; those of a divided model know how it is divided."""
        state, divided = self.model.state_dict(), self.parts.divided
        return state if divided is None else divided.mark(state)

    def copy_weights(self) -> dict[str, Tensor]:
        """Copy the tensors that can change in this stage to the host."""
        learned = self.learned_weights()
        if self.parts.divided is not None:  # each rank keeps its part
            kept = {name: tensor.detach().clone() for name, tensor in learned.items()}
            return self.parts.divided.mark(kept)
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in learned.items()}

    def load_weights(self, *groups: Mapping[str, Tensor]) -> None:
        """Load tensors by name into the model; other tensors do not change.

        Equal tensors are not written, so that code folded or compiled from them remains valid.
        """
        state = self._state()
        with torch.no_grad():
            for group in groups:
                for name, tensor in group.items():
                    there = state[name]
                    if is_sharded(there):
                        assign_(there, tensor)
                    elif not torch.equal(there, tensor.to(there.device, there.dtype)):
                        there.copy_(tensor)

    def restore_best(self) -> None:
        """Load the best weights into the model, if the recipe says so and there are any."""
        chosen = self.rule.chosen
        if chosen is None:
            return
        if self.parts.divided is not None:
            self._restore_divided(chosen)
            return
        if self.world.is_main:  # after a resume, rank 0 alone may have them, on disk
            self.load_weights(*self.weights_of(chosen))
        self.world.copy_from_main(self.learned_weights())

    def _restore_divided(self, chosen: Kept) -> None:
        """Load the best weights of a model that is divided: the parts, or from the disk of rank 0.

        All ranks have forgotten the parts, or none has.
        """
        if chosen.weights is not None:
            self.load_weights(chosen.weights)
            return
        found: dict[str, Tensor] = {}
        if self.world.is_main:
            for group in self.weights_of(chosen):
                found.update(group)
        for name, there in sorted(self.learned_weights().items()):
            if is_sharded(there):
                assign_from_main_(there, found.get(name))
            else:
                if self.world.is_main:
                    assign_(there, found[name])
                self.world.copy_from_main({name: there})

    def weights_of(self, kept: Kept) -> tuple[Weights, ...]:
        """Return kept weights, in groups by name."""
        assert kept.weights is not None
        return (kept.weights,)


def augment_part(
    recipe: Recipe, task: Task, batch: Batch, *, epoch: int, device: torch.device, world: World
) -> Batch:
    """Augment a rank's part of a batch on the device, see `Training.augment`."""
    seed = recipe.seed
    if world.is_alone or not recipe.augment.mixup_alpha:
        return task.augment(batch, seed=seed, epoch=epoch)
    own = Batch(batch.inputs.cpu().clone(), batch.targets.cpu().clone(), batch.ids.clone())
    parts = world.gather(own)  # clones: a view would be sent with its whole batch
    memory_format = MEMORY_FORMATS[recipe.device.memory_format]
    whole = Batch.joined(parts).to(device, memory_format=memory_format)
    first = sum(part.ids.numel() for part in parts[: world.rank])
    mixed = task.augment(whole, seed=seed, epoch=epoch)
    return mixed.rows(slice(first, first + batch.ids.numel()))


def stand_in(
    source: Source, device: torch.device, memory_format: torch.memory_format, *, row: int = 0
) -> Batch:
    """Return an example on the device, for a step without examples for this rank."""
    batch = read_batch(source, np.array([row]))
    return batch.to(device, memory_format=memory_format)


def _example(recipe: Recipe, reader: Reader, device: torch.device) -> Batch | None:
    """Return an example that shows which weights a step uses; None if this rank is alone."""
    if reader.world_size == 1:
        return None
    memory_format = MEMORY_FORMATS[recipe.device.memory_format]
    return stand_in(reader.source, device, memory_format, row=reader.own_row())

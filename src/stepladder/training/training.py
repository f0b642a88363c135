"""One stage of training with real steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Reader
from stepladder.errors import DataError, DivergedError
from stepladder.task.contract import Task
from stepladder.training.clock import STEP_PHASES, Clock, Phase
from stepladder.training.course import Course, Position
from stepladder.training.evaluate import Evaluation, EvaluationCancelled, evaluate
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
    """

    task: Task
    model: nn.Module
    device: torch.device
    memory_format: torch.memory_format
    clock: Clock
    parts: StageParts
    is_validation_pending: bool = False

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
        return cls(
            recipe=recipe,
            task=task,
            model=model,
            device=device,
            memory_format=MEMORY_FORMATS[recipe.device.memory_format],
            clock=clock,
            parts=make_stage_parts(recipe, stage, task, model, device=device, clock=clock),
            train_reader=make_train_reader(recipe, sources.train),
            val_reader=make_held_out_reader(
                sources.val, recipe.batch, recipe.loader, recipe.data.where
            ),
            stage=stage,
            position=position or Position(),
            rule=ValidationRule(recipe.stopping, num_kept=num_kept),
            **own,
        )

    def begin_next_stage(self) -> None:
        """Freeze and unfreeze weights for the next stage, and reset the patience count."""
        self.position.start_stage()
        self.stage = stage = stages_of(self.recipe.train, self.recipe.batch)[self.position.stage]
        self.parts = make_stage_parts(
            self.recipe, stage, self.task, self.model, device=self.device, clock=self.clock
        )
        self.rule.stopping.reset_patience()

    def close(self) -> None:
        """Close the readers."""
        for reader in (self.train_reader, self.val_reader):
            if reader is not None:
                reader.close()

    @property
    def num_train(self) -> int:
        """Number of training examples in an epoch."""
        return self.train_reader.num_examples

    def samples_per_s(self) -> float:
        """Return the training samples per second so far, without validation and checkpoints."""
        seconds = sum(self.clock.total_s(phase) for phase in STEP_PHASES)
        return self.position.num_examples_seen / seconds if seconds > 0 else 0.0

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

    # -- non-finite losses ---------------------------------------------------------------------

    def check_finite(self) -> None:
        """Check for a step whose loss or gradient was not finite.

        Raises:
            DivergedError: if there was one.
        """
        bad = self.parts.update.read_first_bad()
        if bad is not None:
            raise self.diverged(bad)

    def diverged(self, step: int) -> DivergedError:
        """Return the error of a non-finite step."""
        return DivergedError(
            f"the loss or its gradient is not finite at step {step}",
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
            f"the training data ended after {self.position.offset:,} examples, but its __len__ "
            f"is {self.num_train:,}",
            where=type(self.task).__name__,
            why="Epochs, the schedule and the time left are computed from __len__.",
            fix="Return the number of examples that __iter__ yields from __len__.",
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
        )

    def learned_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors that can change in this stage, by name."""
        frozen = frozen_names(self.model, self.parts.frozen)
        state = self.model.state_dict()
        return {name: tensor for name, tensor in state.items() if name not in frozen}

    def frozen_weights(self) -> dict[str, Tensor]:
        """Return the model's tensors that cannot change in this stage, by name."""
        frozen = frozen_names(self.model, self.parts.frozen)
        return {name: t for name, t in self.model.state_dict().items() if name in frozen}

    def copy_weights(self) -> dict[str, Tensor]:
        """Copy the tensors that can change in this stage to the host."""
        learned = self.learned_weights()
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in learned.items()}

    def load_weights(self, *groups: Mapping[str, Tensor]) -> None:
        """Load tensors by name into the model; other tensors do not change.

        Equal tensors are not written, so that code folded or compiled from them remains valid.
        """
        state = self.model.state_dict()
        with torch.no_grad():
            for group in groups:
                for name, tensor in group.items():
                    there = state[name]
                    if not torch.equal(there, tensor.to(there.device, there.dtype)):
                        there.copy_(tensor)

    def restore_best(self) -> None:
        """Load the best weights into the model, if the recipe says so and there are any."""
        chosen = self.rule.chosen
        if chosen is not None:
            self.load_weights(*self.weights_of(chosen))

    def weights_of(self, kept: Kept) -> tuple[Weights, ...]:
        """Return kept weights, in groups by name."""
        assert kept.weights is not None
        return (kept.weights,)

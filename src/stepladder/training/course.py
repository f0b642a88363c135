"""The decisions of a training stage, and its position.

A real run, the training of a trial, and each of many heads trained together are courses: they
differ in what they show, save and compute, but their decisions are the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from stepladder.config.choices import LrRule
from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Reader
from stepladder.optim.schedule import lr_at
from stepladder.training.stage import Stage
from stepladder.training.stopping import ValidationRule

EARLY_STOPPING: Final = "early_stopping"


@dataclass
class Position:
    """A point in a run, in steps and samples: everything that its decisions depend on.

    Attributes:
        stage: index of the training stage.
        stage_epoch: epochs finished in this stage.
        stage_step: steps taken in this stage.
        epoch: epochs finished in the run; determines the order and the augmentation.
        offset: samples of the current epoch that were used, over all ranks.
        step: steps taken in the run.
        num_examples_seen: samples used in the run.
        gained: steps of the base batch size that the steps of this stage were worth (AdaScale).
    """

    stage: int = 0
    stage_epoch: int = 0
    stage_step: int = 0
    epoch: int = 0
    offset: int = 0
    step: int = 0
    num_examples_seen: int = 0
    gained: float = 0.0

    def take_steps(self, num_examples: int, num_steps: int = 1) -> None:
        """Count steps that used num_examples samples in total."""
        self.step += num_steps
        self.stage_step += num_steps
        self.offset += num_examples
        self.num_examples_seen += num_examples

    def end_epoch(self) -> None:
        """Count one epoch."""
        self.epoch += 1
        self.stage_epoch += 1
        self.offset = 0

    def start_stage(self) -> None:
        """Go to the next stage, at the start of an epoch."""
        self.stage += 1
        self.stage_epoch = 0
        self.stage_step = 0
        self.gained = 0.0
        if self.offset:
            self.epoch += 1
            self.offset = 0

    def state(self) -> dict[str, Any]:
        """Return the JSON values that restore this position."""
        return asdict(self)


@dataclass(kw_only=True)
class Course:
    """A stage of training as a series of decisions: learning rate, validations, weights, the end.

    Attributes:
        train_reader, val_reader: define the length of an epoch, and whether there is validation.
        rule: judges validations.
    """

    recipe: Recipe
    stage: Stage
    train_reader: Reader
    val_reader: Reader | None
    rule: ValidationRule
    position: Position = field(default_factory=Position)

    def lr(self) -> float:
        """Return the learning rate of the next step."""
        at = self.position
        return self.gain * self.lr_at(at.gained if self.is_adaptive else at.stage_step)

    def lr_at(self, stage_step: float) -> float:
        """Return the learning rate of a step of the stage, counted from 0, without a gain."""
        return lr_at(
            stage_step,
            base=self.stage.lr,
            schedule=self.recipe.schedule,
            steps_per_epoch=self.schedule_steps,
        )

    @property
    def is_adaptive(self) -> bool:
        """Whether the schedule counts what steps are worth (AdaScale)."""
        return self.recipe.batch.lr_rule is LrRule.ADASCALE

    @property
    def gain(self) -> float:
        """Steps of the base batch size that the next step is worth; 1 here."""
        return 1.0

    @property
    def schedule_steps(self) -> int:
        """Steps of an epoch in which the schedule is counted."""
        if not self.is_adaptive:
            return self.train_reader.steps_per_epoch
        return -(-self.train_reader.num_examples // self.recipe.batch.base_batch_size)

    @property
    def planned_epochs(self) -> int:
        """Epochs of the stage; with AdaScale, as many as the gain so far makes it last."""
        at, planned = self.position, self.recipe.schedule.max_epochs
        if not self.is_adaptive:
            return planned
        left = max(planned * self.schedule_steps - at.gained, 0.0) / self.gain
        done = at.stage_epoch + at.offset / max(self.train_reader.num_examples, 1)
        return math.ceil(done + left / self.train_reader.steps_per_epoch)

    def count(self, num_examples: int, *, num_steps: int = 1) -> bool:
        """Count steps of one epoch that used num_examples samples, and the epoch if it ends.

        Returns:
            True if the epoch ended.
        """
        if self.is_adaptive:
            self.position.gained += num_steps * self.gain
        self.position.take_steps(num_examples, num_steps)
        is_epoch_end = self.position.offset >= self.train_reader.num_examples
        if is_epoch_end:
            self.position.end_epoch()
        return is_epoch_end

    def is_validation_due(self, is_epoch_end: bool) -> bool:
        """Return True if a validation is due, by steps or at the end of epochs."""
        if self.val_reader is None:
            return False
        stopping, at = self.recipe.stopping, self.position
        if stopping.validate_every_steps is not None:
            return at.stage_step % stopping.validate_every_steps == 0
        return is_epoch_end and at.stage_epoch % stopping.validate_every_epochs == 0

    def reason_to_stop(self) -> str | None:
        """Return why the stage should end now, or None."""
        if self.rule.is_exhausted:
            return EARLY_STOPPING
        at, schedule = self.position, self.recipe.schedule
        if self.is_adaptive:
            return self._reason_by_gain()
        if at.stage_epoch >= schedule.max_epochs:
            return "max_epochs"
        is_last = schedule.max_steps is not None and at.stage_step >= schedule.max_steps
        return "max_steps" if is_last else None

    def _reason_by_gain(self) -> str | None:
        """Return why the stage should end now: the base batch size would have done its steps.

        Epochs are not left before their end, where they are validated.
        """
        at, schedule = self.position, self.recipe.schedule
        if at.offset == 0 and at.gained >= schedule.max_epochs * self.schedule_steps:
            return "max_epochs"
        is_last = schedule.max_steps is not None and at.gained >= schedule.max_steps
        return "max_steps" if is_last else None

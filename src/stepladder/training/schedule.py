"""Where a stage of training is, and what its schedule says of that point."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stepladder.config.recipe import Recipe, ScheduleConfig, StoppingConfig
from stepladder.data.reading.reader import Reader
from stepladder.optim.schedule import lr_at


@dataclass
class Position:
    """A point in a run: everything that its decisions depend on, counted in steps and samples.

    Attributes:
        stage: index of the training stage.
        stage_epoch: epochs finished in this stage.
        stage_step: steps taken in this stage.
        epoch: epochs finished in the run; the order and the augmentation go by it.
        offset: samples of the open epoch that were used, over all ranks.
        step: steps taken in the run.
        num_examples_seen: samples used in the run.
    """

    stage: int = 0
    stage_epoch: int = 0
    stage_step: int = 0
    epoch: int = 0
    offset: int = 0
    step: int = 0
    num_examples_seen: int = 0

    def take_steps(self, num_examples: int, num_steps: int = 1) -> None:
        """Count steps that together used num_examples samples."""
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
        if self.offset:
            self.epoch += 1
            self.offset = 0

    def state(self) -> dict[str, Any]:
        """Give the JSON values that restore this position."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StageSchedule:
    """How long a stage lasts, its learning rate at each step, and when a validation is due.

    Attributes:
        lr: learning rate before warm-up and decay.
        num_examples, steps_per_epoch: of an epoch.
        limits: warm-up, decay, and the most epochs and steps.
        stopping: how often to validate.
        has_validation: whether there is a validation split.
    """

    lr: float
    num_examples: int
    steps_per_epoch: int
    limits: ScheduleConfig
    stopping: StoppingConfig
    has_validation: bool

    @classmethod
    def of(
        cls, recipe: Recipe, *, lr: float, reader: Reader, has_validation: bool
    ) -> StageSchedule:
        """Return the schedule by which a recipe trains on the examples of a reader."""
        return cls(
            lr=lr,
            num_examples=reader.num_examples,
            steps_per_epoch=reader.steps_per_epoch,
            limits=recipe.schedule,
            stopping=recipe.stopping,
            has_validation=has_validation,
        )

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step of the stage, counted from 0."""
        return lr_at(step, base=self.lr, schedule=self.limits, steps_per_epoch=self.steps_per_epoch)

    def count(self, at: Position, num_examples: int, *, num_steps: int = 1) -> bool:
        """Count steps of one epoch in a position, and the epoch if it ends with them.

        Returns:
            Whether the epoch ended.
        """
        at.take_steps(num_examples, num_steps)
        is_epoch_end = at.offset >= self.num_examples
        if is_epoch_end:
            at.end_epoch()
        return is_epoch_end

    def is_validation_due(self, at: Position, *, is_epoch_end: bool) -> bool:
        """Return True after every so many steps, or at the end of every so many epochs."""
        if not self.has_validation:
            return False
        every_steps = self.stopping.validate_every_steps
        if every_steps is not None:
            return at.stage_step % every_steps == 0
        return is_epoch_end and at.stage_epoch % self.stopping.validate_every_epochs == 0

    def reason_to_end(self, at: Position) -> str | None:
        """Return "max_epochs" or "max_steps" where the stage has reached its length, else None."""
        if at.stage_epoch >= self.limits.max_epochs:
            return "max_epochs"
        max_steps = self.limits.max_steps
        return "max_steps" if max_steps is not None and at.stage_step >= max_steps else None

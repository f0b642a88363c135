"""Where a run is: everything that its decisions depend on, counted in steps and samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Position:
    """A point in a run.

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

    def take_step(self, num_examples: int) -> None:
        """Count one step on num_examples samples."""
        self.step += 1
        self.stage_step += 1
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

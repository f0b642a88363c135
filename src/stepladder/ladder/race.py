"""Two recipes timed in interleaved blocks, so that whatever drifts meets both alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from stepladder.config.recipe import Recipe
from stepladder.ladder.exactness import Material
from stepladder.ladder.guard import TooSlow, Watchdog
from stepladder.measure.workload import BlockTimes, Workload, align_plans
from stepladder.records.profile import TrainingTime
from stepladder.stats import choose_num_blocks

PILOT_PAIRS: Final = 4
MAX_BLOCKS: Final = 16
GROSSLY: Final = 5.0
"""Times as slow after the first pair, from which on no more blocks are spent."""
_MIN_HALF_WIDTH: Final = 0.015

ToTime = Callable[[BlockTimes], TrainingTime]


@dataclass
class Side:
    """One of the two recipes.

    Attributes:
        to_time: from what a block took to the time to a trained model.
        blocks: so far.
    """

    workload: Workload
    to_time: ToTime
    blocks: list[BlockTimes] = field(default_factory=list)

    def totals_s(self) -> tuple[float, ...]:
        """Time to a trained model by block."""
        return tuple(self.to_time(block).total_s for block in self.blocks)

    def mean_time(self) -> TrainingTime:
        """Time to a trained model from the means over blocks."""
        num = len(self.blocks)
        trunk_s = [block.trunk_s for block in self.blocks if block.trunk_s is not None]
        return self.to_time(
            BlockTimes(
                step_s=sum(block.step_s for block in self.blocks) / num,
                num_steps=self.blocks[0].num_steps,
                validation_s=sum(block.validation_s for block in self.blocks) / num,
                trunk_s=sum(trunk_s) / num if trunk_s else None,
            )
        )


class Race:
    """Blocks of two recipes in turn: before, after, after, before, ...

    Args:
        before, after: recipe and what it is run on.
        folder: private, for what is compiled and made on the way.
        block_s: length of a block, at least.
        watchdog: told what is expected.
    """

    def __init__(
        self,
        before: tuple[Recipe, Material],
        after: tuple[Recipe, Material],
        *,
        device: torch.device,
        folder: Path,
        block_s: float,
        watchdog: Watchdog,
    ) -> None:
        self.block_s = block_s
        self._watchdog = watchdog
        self._stack = ExitStack()
        self._pair = 0
        try:
            workloads = [
                self._open(recipe, material, device, folder / name)
                for name, (recipe, material) in {"before": before, "after": after}.items()
            ]
        except BaseException:
            self.close()
            raise
        self.before, self.after = workloads

    def close(self) -> None:
        """Let go of both."""
        self._stack.close()

    def warm_up(self) -> None:
        """Let both take their first steps; compiled code is timed cold."""
        again = [self.before] if self.before.recipe.device.compile else []  # lost to the cold start
        for workload in (self.before, self.after, *again):
            self._watchdog.expect(0.0)
            workload.warm_up(self.block_s)
        plans = align_plans(self.before.plan, self.after.plan)
        self.before.plan, self.after.plan = plans

    def run(self, before: Side, after: Side, *, num_blocks: int) -> None:
        """Run pairs of blocks until each side has so many.

        Raises:
            TooSlow: if after the first pair one more would be a waste.
        """
        while len(before.blocks) < num_blocks:
            sides = (before, after) if self._pair % 2 == 0 else (after, before)
            self._pair += 1
            for side in sides:
                self._watchdog.expect(side.blocks[0].wall_s if side.blocks else self.block_s)
                side.blocks.append(side.workload.block(self.block_s))
            if len(before.blocks) == 1:
                slower = after.totals_s()[0] / before.totals_s()[0]
                if slower > GROSSLY:
                    raise TooSlow(f"{slower:.0f} times as slow after one block")

    def _open(
        self, recipe: Recipe, material: Material, device: torch.device, cache: Path
    ) -> Workload:
        self._watchdog.expect(0.0)
        workload = Workload(recipe, material.task, material.sources, device=device, cache=cache)
        self._stack.callback(workload.close)
        return workload


def wanted_blocks(
    before_s: tuple[float, ...], after_s: tuple[float, ...], *, at_least: int, confidence: float
) -> int:
    """Choose how many pairs a race takes, from the spread of its first ones.

    The bounds have to be half of min_gain near it, a tenth of the gain where that is large, and a
    third of the way to min_gain where the gain is far from it.
    """
    ratios = [math.log(b / a) for b, a in zip(before_s, after_s, strict=True)]
    gain = abs(sum(ratios) / len(ratios))
    half_width = max(_MIN_HALF_WIDTH, gain / 10, abs(gain - 2 * _MIN_HALF_WIDTH) / 3)
    return choose_num_blocks(
        ratios,
        half_width=half_width,
        confidence=confidence,
        at_least=at_least,
        at_most=max(MAX_BLOCKS, at_least),
    )

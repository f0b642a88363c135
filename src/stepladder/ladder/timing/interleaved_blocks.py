"""Time two recipes in interleaved blocks, so that drift affects both equally."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from stepladder.ladder.limits.guard import TooSlow, Watchdog
from stepladder.ladder.timing.patience import Patience
from stepladder.measuring.blocks.block import mean_times
from stepladder.measuring.blocks.workload import BlockTimes, align_plans
from stepladder.measuring.ranks.workload import AnyWorkload
from stepladder.records.profile import TrainingTime
from stepladder.stats import choose_num_blocks

PILOT_PAIRS: Final = 4
MAX_BLOCKS: Final = 16
MIN_PAIRS: Final = 2
"""Pairs that are run even without budget left: fewer have no spread."""
GROSSLY: Final = 5.0
"""Slowdown after the first pair from which no more blocks are run."""
_LONG: Final = 2.0
"""Times the wanted block length from which the warm-up decides whether any block is run."""
_MIN_HALF_WIDTH: Final = 0.015

ToTime = Callable[[BlockTimes], TrainingTime]


@dataclass
class Side:
    """One of the two recipes.

    Attributes:
        to_time: converts the times of a block to the time to a trained model.
        loads_s: timings of filling memory, used for the blocks in turn, so that the totals include
            their noise; empty if nothing is loaded.
        blocks: measured so far.
    """

    workload: AnyWorkload
    to_time: ToTime
    loads_s: tuple[float, ...] = ()
    blocks: list[BlockTimes] = field(default_factory=list)

    def totals_s(self) -> tuple[float, ...]:
        """Return the time to a trained model, by block."""
        return tuple(self.to_time(block).total_s for block in self.blocks)

    def pilot_s(self) -> float:
        """Return the time to a trained model, estimated from the warm-up."""
        return self.to_time(self._with_load(self.workload.pilot)).total_s

    def add(self, block: BlockTimes) -> None:
        """Add a block."""
        self.blocks.append(self._with_load(block))

    def _with_load(self, block: BlockTimes) -> BlockTimes:
        if not self.loads_s:
            return block
        return replace(block, load_s=self.loads_s[len(self.blocks) % len(self.loads_s)])

    def mean_time(self) -> TrainingTime:
        """Return the time to a trained model from the means over blocks."""
        return self.to_time(mean_times(self.blocks))


class Race:
    """Blocks of two workloads in turn: before, after, after, before, ...

    Args:
        before, after: the same one if both take the same steps and validations; the caller closes
            them.
        block_s: minimum length of a block.
        watchdog: gets the expected durations.
        few_steps_s: rough time of the first few steps of either.
        has_same_features: whether both compute the same features: each pair times them once, so
            that their noise does not count as a difference.
        patience: for pairs that no other process disturbs; None: every pair counts.
        time_left: returns the seconds until no further pair is started.

    Attributes:
        is_cut: whether fewer pairs were run than requested, as the time ran out.
    """

    def __init__(
        self,
        before: AnyWorkload,
        after: AnyWorkload,
        *,
        block_s: float,
        watchdog: Watchdog,
        few_steps_s: float = 0.0,
        has_same_features: bool = False,
        patience: Patience | None = None,
        time_left: Callable[[], float],
    ) -> None:
        self.before, self.after = before, after
        self.block_s = block_s
        self.is_cut = False
        self._time_left = time_left
        self._watchdog = watchdog
        self._few_steps_s = few_steps_s
        self._has_same_features = has_same_features
        self._patience = patience
        self._pair = 0

    def warm_up(self) -> None:
        """Run the first steps of both; compiled code is timed cold."""
        again = [self.before] if self.before.is_compiled else []  # a cold start discarded its code
        both = dict.fromkeys((self.before, self.after))
        if self._patience is not None:
            self._patience.wait(self._watchdog)
        for workload in (*both, *(again if len(both) > 1 else ())):
            self._watchdog.expect(self._few_steps_s)
            workload.warm_up(self.block_s)
        plans = align_plans(self.before.plan, self.after.plan)
        self.before.plan, self.after.plan = plans

    def run(self, before: Side, after: Side, *, num_blocks: int) -> None:
        """Run pairs of blocks until each side has `num_blocks`, or the time runs out.

        Raises:
            TooSlow: if the first pair, or already the warm-up, shows a gross slowdown.
        """
        if not before.blocks and after.workload.planned_s > _LONG * self.block_s:
            _refuse_gross(before.pilot_s(), after.pilot_s(), "in its first steps")
        while len(before.blocks) < num_blocks and not self._is_over(before, after):
            sides = (before, after) if self._pair % 2 == 0 else (after, before)
            time_both = partial(self._time, sides)
            patience = self._patience
            timed = (
                time_both() if patience is None else patience.undisturbed(time_both, self._watchdog)
            )
            self._pair += 1
            for side in sides:
                side.add(timed[side.workload])
            if len(before.blocks) == 1:
                _refuse_gross(before.totals_s()[0], after.totals_s()[0], "after one block")

    def _time(self, sides: tuple[Side, Side]) -> dict[AnyWorkload, BlockTimes]:
        """Time a block of each side, or one of both if they share a workload."""
        timed: dict[AnyWorkload, BlockTimes] = {}
        first: BlockTimes | None = None
        for side in sides:
            if side.workload not in timed:
                self._watchdog.expect(side.blocks[0].wall_s if side.blocks else self.block_s)
                like = first if self._has_same_features else None
                timed[side.workload] = side.workload.block(self.block_s, like=like)
                first = first or timed[side.workload]
        return timed

    def _is_over(self, before: Side, after: Side) -> bool:
        """Return True if there is not enough time for another pair."""
        if len(before.blocks) < MIN_PAIRS:
            return False
        self.is_cut = self._time_left() < sum(side.blocks[-1].wall_s for side in (before, after))
        return self.is_cut


def _refuse_gross(before_s: float, after_s: float, when: str) -> None:
    if after_s > GROSSLY * before_s:
        raise TooSlow(f"{after_s / before_s:.0f} times as slow {when}")


def wanted_blocks(
    before_s: tuple[float, ...],
    after_s: tuple[float, ...],
    *,
    at_least: int,
    confidence: float,
    price: float = 1.0,
) -> int:
    """Choose how many pairs of blocks to run, from the spread of the first ones.

    The half-width of the interval has to be half of min_gain near it, a tenth of a large gain, and
    half of the distance to min_gain if the gain is far from it. An undecided result gets as many
    pairs again.

    Args:
        price: per hour after, over that before: the gain is that of the cost.
    """
    ratios = [math.log(b / a / price) for b, a in zip(before_s, after_s, strict=True)]
    gain = abs(sum(ratios) / len(ratios))
    half_width = max(_MIN_HALF_WIDTH, gain / 10, abs(gain - 2 * _MIN_HALF_WIDTH) / 2)
    return choose_num_blocks(
        ratios,
        half_width=half_width,
        confidence=confidence,
        at_least=at_least,
        at_most=max(MAX_BLOCKS, at_least),
    )

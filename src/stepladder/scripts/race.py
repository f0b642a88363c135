"""Time two versions of a script in blocks of steps, in turn, and collect what they learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from stepladder.ladder.timing.interleaved_blocks import MAX_BLOCKS, wanted_blocks
from stepladder.ladder.timing.patience import Patience
from stepladder.records.ladder import Interval
from stepladder.scripts.arm import Arm, Block, ScriptEndedError, opened
from stepladder.stats.speed import MIN_BLOCKS, speedup_interval

WARM_UP: Final = 3
"""Steps of each before the first block; what is made lazily is made in them."""
_BLOCK_S: Final = 0.6
_SLOWEST: Final = 20.0  # a block may take this many times what is expected, and then some
_SLACK_S: Final = 60.0
_GROSSLY: Final = 4.0
_MAX_WARM_UP_S: Final = 60.0
CONFIDENCE: Final = 0.975


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a script is timed.

    Attributes:
        step_s: expected seconds of a step.
        num_steps: steps that the script takes in all; None: more than were watched.
        num_blocks: pairs of blocks that are wanted, MIN_BLOCKS or more.
        wanted_warm_up: steps of each before the first block, if the script takes so many.
        wait_s: seconds that a script may take to its first step.
        patience: for pairs that no other process disturbs.
        time_left: returns the seconds until no further pair is started.
    """

    step_s: float
    num_steps: int | None
    num_blocks: int = MIN_BLOCKS
    wanted_warm_up: int = WARM_UP
    wait_s: float = 600.0
    patience: Patience
    time_left: Callable[[], float]

    @property
    def warm_up(self) -> int:
        """Steps of each before the first block: as wanted, if that is at most a minute of them."""
        wanted = max(WARM_UP, self.wanted_warm_up)
        is_long = wanted * self.step_s > _MAX_WARM_UP_S
        is_too_much = self.num_steps is not None and self.num_steps - 1 - wanted < self.num_blocks
        return WARM_UP if is_long or is_too_much else wanted

    @property
    def steps_per_block(self) -> int:
        """Steps of a block: about half a second of them, as far as the script has so many."""
        wanted = max(1, math.ceil(_BLOCK_S / max(self.step_s, 1e-6)))
        if self.num_steps is None:
            return wanted
        # the first step is over before the first block
        left = self.num_steps - 1 - self.warm_up
        return max(1, min(wanted, left // self.num_blocks))


@dataclass(kw_only=True)
class Raced:
    """What was measured of two versions.

    Attributes:
        before_s, after_s: seconds of each block, paired.
        losses: of each step after the first one: (before, after).
        warm_up: steps of each before the first block.
        warm_s: seconds of these.
        start_s: seconds of each to its first step, started alone; 0 if they were not.
        steps_per_block: steps of a block.
        problems: what could not be applied to the second version.
        ended: why the measurement ended early; empty if it did not.
        num_steps: steps that the script has at least, if it ended meanwhile; 0: it did not.
    """

    before_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    losses: tuple[list[float | None], list[float | None]] = field(default_factory=lambda: ([], []))
    warm_up: int = WARM_UP
    warm_s: tuple[float, float] = (0.0, 0.0)
    start_s: tuple[float, float] = (0.0, 0.0)
    steps_per_block: int = 1
    problems: tuple[str, ...] = ()
    ended: str = ""
    num_steps: int = 0

    @property
    def speed(self) -> Interval | None:
        """How many times as fast the second version is; None with too few blocks."""
        if len(self.before_s) < MIN_BLOCKS:
            return None
        return speedup_interval(self.before_s, self.after_s, confidence=CONFIDENCE)

    @property
    def step_s(self) -> tuple[float, float]:
        """Mean seconds of a step of each."""
        num = max(1, len(self.before_s) * self.steps_per_block)
        return sum(self.before_s) / num, sum(self.after_s) / num

    @property
    def one_time_s(self) -> float:
        """Seconds that the start of the second version takes longer than that of the first.

        Of the time to the first step, and that in which the next steps take longer than later ones.
        """
        first, second = self.step_s
        num = self.warm_up
        warming = max(0.0, self.warm_s[1] - num * second - (self.warm_s[0] - num * first))
        return warming + max(0.0, self.start_s[1] - self.start_s[0])


def race(
    before: Arm,
    after: Arm,
    plan: Plan,
    *,
    what: str,
    steps_ratio: int = 1,
    times_start: bool = False,
) -> Raced:
    """Run blocks of both in turn: before, after, after, before, ...

    Args:
        before, after: the two versions, not started yet.
        plan: how they are timed.
        what: is shown while they start.
        steps_ratio: steps of the first that take as many examples as one of the second.
        times_start: start them one after the other, to time what happens once.

    Raises:
        UsageError: if one of them fails, or does not get to its first step.
        ScriptEndedError: if one ends in its first steps.
    """
    num_second = max(1, plan.steps_per_block // steps_ratio)
    found = Raced(steps_per_block=num_second * steps_ratio)
    arms = (before, after)
    with opened(arms, wait_s=plan.wait_s, what=what, in_turn=times_start) as seconds:
        if times_start:
            found.start_s = (seconds[0], seconds[1])
        found.problems = after.problems
        wait_s = plan.wait_s
        first, second = (arm.block(plan.warm_up, wait_s=wait_s) for arm in arms)
        found.warm_up = plan.warm_up
        found.warm_s = (first.seconds, second.seconds)
        _note(found, first, second)
        most_s = _SLACK_S + _SLOWEST * plan.step_s * found.steps_per_block
        num = plan.num_blocks
        while len(found.before_s) < num:
            turn = len(found.before_s)

            def time_both(turn: int = turn) -> tuple[Block, Block]:
                steps = found.steps_per_block
                if turn % 2 == 0:
                    one = before.block(steps, wait_s=most_s)
                    return one, after.block(num_second, wait_s=most_s)
                two = after.block(num_second, wait_s=most_s)
                return before.block(steps, wait_s=most_s), two

            began = time.monotonic()
            try:
                one, two = (
                    time_both()
                    if plan.num_steps is not None  # it has no steps for a repetition
                    else plan.patience.undisturbed(time_both)
                )
            except ScriptEndedError:
                found.ended = f"the script ended after {turn} pairs of blocks"
                found.num_steps = 1 + found.warm_up + turn * found.steps_per_block
                break
            found.before_s.append(one.seconds)
            found.after_s.append(two.seconds)
            _note(found, one, two)
            if plan.time_left() < time.monotonic() - began:
                found.ended = "the time ran out"
                break
            if turn == 1 and sum(found.after_s) > _GROSSLY * sum(found.before_s):
                found.ended = "several times as slow"
                break
            if len(found.before_s) == num == plan.num_blocks and plan.num_steps is None:
                num = _extended(found, num)
        found.problems = after.problems
    return found


def _extended(found: Raced, num: int) -> int:
    """Return how many pairs are needed, from the spread of those that were run."""
    wanted = wanted_blocks(
        tuple(found.before_s), tuple(found.after_s), at_least=num, confidence=CONFIDENCE
    )
    return min(wanted, MAX_BLOCKS)


def _note(found: Raced, before: Block, after: Block) -> None:
    found.losses[0].extend(before.losses)
    found.losses[1].extend(after.losses)

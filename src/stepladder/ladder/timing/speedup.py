"""Time to a trained model before and after: from interleaved blocks, and epochs over seeds."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from stepladder.config.choices import Where
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.keys import execution_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import TrialFailed, Watchdog
from stepladder.ladder.timing.interleaved_blocks import (
    MIN_PAIRS,
    PILOT_PAIRS,
    Race,
    Side,
    wanted_blocks,
)
from stepladder.ladder.verdict import judge_speed
from stepladder.measuring.blocks.workload import BlockTimes, Workload, training_time
from stepladder.records.ladder import Decision, Interval
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.formulas import checkpoints_s
from stepladder.stats import combined_speedup
from stepladder.training.features.feature_pass import batch_size_on
from stepladder.training.setup.build import make_train_reader

_TWO_LOOKS: Final = 0.975  # at each of two looks, so that both together are right in 95 %
_ONE_LOOK: Final = 0.95
_MIN_SEEDS: Final = 2
_FEW_STEPS: Final = 6
_DOUBT: Final = 1.1  # what the times of a profile may be wrong by
_NEXT_TO_NOTHING: Final = 0.005  # of a gain that such an error changes
_COMPILE_S: Final = 30.0
"""Taken for compiling, of which twenty times are granted: a large model takes minutes."""
COLD_NOISE: Final = 0.15
"""What one cold compilation may be off by, in 95 %: five of one model took 34 to 42 s."""
_EXTENSION_FRAC: Final = 0.15  # of the budget, for as many blocks again
_LOOKS: Final = 8  # at each side, and one before that meets cold pages
_LOOK_S: Final = 0.2
_MIN_ROWS: Final = 32

Looks = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Length:
    """How long a recipe's training goes on.

    Attributes:
        epochs, num_validations: means over seeds.
        by_seed: (epochs, validations) of each seed that was trained to its end; empty where they
            are known.
        seeds: these seeds.
        why_not: why the first of the other seeds has no end; None: all have.
        why_assumed: why no seed was trained, so that the length is the most it can be; None: it is
            known, or found by seed.
    """

    epochs: float
    num_validations: float
    by_seed: tuple[tuple[float, float], ...] = ()
    seeds: tuple[int, ...] = ()
    why_not: str | None = None
    why_assumed: str | None = None

    def of_seed(self, time: TrainingTime, idx: int) -> TrainingTime:
        """Return the time with the epochs of one seed."""
        if not self.by_seed:
            return time
        epochs, num_validations = self.by_seed[idx]
        return replace(time, epochs=epochs, num_validations=num_validations)

    def of_seeds(self, seeds: tuple[int, ...]) -> Length:
        """Keep these seeds, and give the means over them."""
        of_seed = dict(zip(self.seeds, self.by_seed, strict=True))
        kept = tuple(of_seed[seed] for seed in seeds)
        epochs, num_validations = (fmean(numbers) for numbers in zip(*kept, strict=True))
        return replace(
            self, epochs=epochs, num_validations=num_validations, by_seed=kept, seeds=seeds
        )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How many times faster, and the samples behind it.

    Attributes:
        before_s, after_s: time to a trained model by block.
        cut_short: that the budget ended before all blocks were run, in words; None: it did not.
        is_too_little: whether fewer were run than a verdict takes.
    """

    interval: Interval
    before: TrainingTime
    after: TrainingTime
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()
    cut_short: str | None = None
    is_too_little: bool = False


def length_of(lab: Lab, recipe: Recipe) -> Length:
    """Find out how many epochs a recipe trains."""
    epochs, num_validations, _ = lab.expected_epochs(recipe)
    if not recipe.stopping.early or lab.sources.val is None:
        return Length(epochs=epochs, num_validations=num_validations)
    plain = lab.plain(recipe)
    outcomes = plain.found
    found = [outcome for outcome in outcomes if outcome.why_not is None]
    return Length(
        epochs=epochs,
        num_validations=num_validations,
        by_seed=tuple((outcome.epochs, outcome.num_validations) for outcome in found),
        seeds=tuple(outcome.seed for outcome in found),
        why_not=next((outcome.why_not for outcome in outcomes if outcome.why_not), None),
        why_assumed=plain.why_not,
    )


def why_no_length(before: Recipe, after: Recipe, lengths: tuple[Length, Length]) -> str | None:
    """Say why the time of two recipes cannot be compared, or None.

    Where they differ only in their lengths, an assumed one would tell nothing.
    """
    if execution_key(before) != execution_key(after):
        return None
    return lengths[0].why_assumed or lengths[1].why_assumed


def pair_lengths(before: Length, after: Length) -> tuple[Length, Length]:
    """Keep of two lengths the seeds that were trained to their ends both before and after.

    A known length, and what it is compared with, stay as they are.

    Raises:
        TrialFailed: if fewer than two seeds are left.
    """
    if not before.seeds or not after.seeds:
        return before, after
    both = tuple(seed for seed in before.seeds if seed in after.seeds)
    num_seeds = max(len(before.seeds), len(after.seeds))
    if len(both) < min(_MIN_SEEDS, num_seeds):
        why_not = after.why_not or before.why_not
        words = f"{len(both)} of {num_seeds} seeds ended both before and after"
        raise TrialFailed(f"{why_not}: {words}" if why_not else words)
    return before.of_seeds(both), after.of_seeds(both)


def few_steps_s(profile: Profile, before: Recipe, recipe: Recipe) -> float:
    """Return roughly what a few first steps and trunk batches of a recipe take, in seconds.

    Good enough to tell what hangs.

    Args:
        profile: of the recipe `before`.
    """
    share = max(1.0, recipe.batch.global_batch_size / before.batch.global_batch_size)
    size = batch_size_on(torch.device(profile.device))
    steps_s = share * profile.time.step_s + size * (profile.trunk_s or 0.0)
    return _FEW_STEPS * steps_s + (_COMPILE_S if recipe.device.compile else 0.0)


def measure_speed(
    lab: Lab,
    profile: Profile,
    before: tuple[Recipe, Length],
    after: tuple[Recipe, Length],
    *,
    folder: Path,
    watchdog: Watchdog,
) -> Speed:
    """Measure how many times faster the recipe after is than the one before.

    Where only the length of the training differs, or how often it is validated, both totals are of
    the same blocks. No block is run where they would tell next to nothing: the ratio of two lengths
    of the same steps hardly depends on what a step takes.
    """
    is_alike = execution_key(before[0]) == execution_key(after[0])
    if is_alike and _rhythm(before[0]) == _rhythm(after[0]):
        found = _by_length(profile, before[1], after[1])
        if not _rests_on_times(found):
            return found
    few_s = max(few_steps_s(profile, before[0], one) for one in (before[0], after[0]))
    recipes = {"before": before[0]} if is_alike else {"before": before[0], "after": after[0]}
    materials = [lab.material(one) for one in recipes.values()]
    with ExitStack() as stack:
        workloads = []
        for (name, one), material in zip(recipes.items(), materials, strict=True):
            watchdog.expect(few_s)
            workload = Workload(
                one, material.task, material.sources, device=lab.device, cache=folder / name
            )
            workloads.append(stack.enter_context(closing(workload)))
        race = Race(
            workloads[0],
            workloads[-1],
            block_s=lab.job.ladder.block_s,
            watchdog=watchdog,
            few_steps_s=few_s,
            time_left=lab.time_left,
        )
        race.warm_up()
        loads_s = loading_s(lab, profile, before[0], after[0], watchdog=watchdog)
        sides = (
            Side(
                race.before,
                _to_time(lab, profile, *before, race.before.one_time_s),
                loads_s=loads_s[0],
            ),
            Side(
                race.after,
                _to_time(lab, profile, *after, race.after.one_time_s),
                loads_s=loads_s[1],
            ),
        )
        interval = bound_gain(lab, race, sides, (before[1], after[1]))
    num_pairs = len(sides[0].blocks)
    return Speed(
        interval=interval,
        before=sides[0].mean_time(),
        after=sides[1].mean_time(),
        before_s=sides[0].totals_s(),
        after_s=sides[1].totals_s(),
        cut_short=f"the budget ended after {num_pairs} pairs" if race.is_cut else None,
        is_too_little=num_pairs < lab.job.ladder.num_blocks,
    )


def bound_gain(
    lab: Lab, race: Race, sides: tuple[Side, Side], lengths: tuple[Length, Length]
) -> Interval:
    """Run as many blocks as the first ones call for, and once more as many if undecided.

    Fewer where the budget ends.

    Args:
        sides: before and after, as the race has them.
        lengths: of both.

    Returns:
        How many times faster; with its bounds, right in 95 % of trials however often is looked.
    """
    options: LadderConfig = lab.job.ladder
    race.run(*sides, num_blocks=PILOT_PAIRS)
    num_blocks = wanted_blocks(
        sides[0].totals_s(),
        sides[1].totals_s(),
        at_least=options.num_blocks,
        confidence=_TWO_LOOKS,
    )
    race.run(*sides, num_blocks=num_blocks)
    pair_s = sum(side.blocks[-1].wall_s for side in sides)
    may_extend = not race.is_cut and num_blocks * pair_s <= lab.allowed_s(_EXTENSION_FRAC)
    look = _bound(sides, lengths, _TWO_LOOKS if may_extend else _ONE_LOOK)
    if may_extend and judge_speed(look, options).decision is Decision.UNDECIDED:
        race.run(*sides, num_blocks=2 * num_blocks)
        look = _bound(sides, lengths, _TWO_LOOKS)
    return look


def _bound(sides: tuple[Side, Side], lengths: tuple[Length, Length], confidence: float) -> Interval:
    by_block = (sides[0].totals_s(), sides[1].totals_s())
    times = (sides[0].mean_time(), sides[1].mean_time())
    found = combined_speedup(
        by_block, _by_seed(times, lengths), confidence=confidence, min_blocks=MIN_PAIRS
    )
    return widened(found, times, is_one=sides[0].workload is sides[1].workload)


def widened(
    interval: Interval, times: tuple[TrainingTime, TrainingTime], *, is_one: bool
) -> Interval:
    """Widen bounds by what a compilation may be off: it is timed cold once, and in no block.

    Args:
        times: before and after.
        is_one: both have the same compilation, so that an error is one of both.
    """
    shares = [time.one_time_s.get("compile", 0.0) / time.total_s for time in times]
    share = abs(shares[0] - shares[1]) if is_one else math.hypot(*shares)
    factor = math.exp(COLD_NOISE * share)
    return replace(interval, low=interval.low / factor, high=interval.high * factor)


def _by_seed(
    times: tuple[TrainingTime, TrainingTime], lengths: tuple[Length, Length]
) -> tuple[list[float], list[float]] | None:
    """Return both totals of each seed; None where both lengths are known, or the same.

    Shapes: lengths are paired (see `pair_lengths`), or one of them is known.
    """
    if lengths[0] == lengths[1]:
        return None
    num = max(len(length.by_seed) for length in lengths)
    if num < _MIN_SEEDS:
        return None
    before_s, after_s = (
        [length.of_seed(time, idx).total_s for idx in range(num)]
        for time, length in zip(times, lengths, strict=True)
    )
    return before_s, after_s


def _rhythm(recipe: Recipe) -> tuple[int, int | None]:
    """Return how often validations come."""
    return recipe.stopping.validate_every_epochs, recipe.stopping.validate_every_steps


def _by_length(profile: Profile, before: Length, after: Length) -> Speed:
    lengths = (before, after)
    times = (_stretched(profile, before), _stretched(profile, after))
    by_seed = _by_seed(times, lengths) or ([times[0].total_s] * 2, [times[1].total_s] * 2)
    return Speed(
        interval=combined_speedup(None, by_seed, confidence=_ONE_LOOK),
        before=times[0],
        after=times[1],
    )


def _rests_on_times(found: Speed) -> bool:
    """Return True if a ratio of lengths would be another if a step took another time."""
    gain = found.before.total_s / found.after.total_s
    slower = [
        replace(time, step_s=time.step_s * _DOUBT, validation_s=time.validation_s * _DOUBT).total_s
        for time in (found.before, found.after)
    ]
    return abs(math.log(slower[0] / slower[1] / gain)) > _NEXT_TO_NOTHING


def _stretched(profile: Profile, length: Length) -> TrainingTime:
    """Return the profile's time with another length."""
    time = replace(profile.time, epochs=length.epochs, num_validations=length.num_validations)
    return _with_checkpoints(profile, time)


def _with_checkpoints(profile: Profile, time: TrainingTime) -> TrainingTime:
    """Count the checkpoints of a training that takes so long."""
    checkpoint_s = checkpoints_s(profile.time, loop_s=time.loop_s, save_s=profile.save_s)
    return replace(time, checkpoint_s=checkpoint_s)


@dataclass(frozen=True, kw_only=True)
class _ToTime:
    """From what a block of a recipe took to the time to a trained model."""

    batch_size: int
    length: Length
    num_train: int
    num_val: int
    one_time_s: dict[str, float]
    profile: Profile

    def __call__(self, times: BlockTimes) -> TrainingTime:
        time = training_time(
            times,
            batch_size=self.batch_size,
            num_train=self.num_train,
            num_val=self.num_val,
            epochs=self.length.epochs,
            num_validations=self.length.num_validations,
            one_time_s=self.one_time_s,
        )
        return _with_checkpoints(self.profile, time)


def _to_time(
    lab: Lab, profile: Profile, recipe: Recipe, length: Length, cold_s: dict[str, float]
) -> _ToTime:
    return _ToTime(
        batch_size=recipe.batch.global_batch_size,
        length=length,
        num_train=lab.num_train(recipe),
        num_val=0 if lab.sources.val is None else len(lab.sources.val),
        one_time_s={**lab.one_time_s(recipe), **cold_s},
        profile=profile,
    )


def loading_s(
    lab: Lab, profile: Profile, before: Recipe, after: Recipe, *, watchdog: Watchdog
) -> tuple[Looks, Looks]:
    """Return looks at the seconds to fill memory before and after; empty where nothing is loaded.

    What the profile found where both read alike, or `after` loads nothing. Elsewhere memory is
    filled in turn with a sample of the examples, as each recipe reads them.
    """
    known_s = profile.time.one_time_s.get("load")
    sides = (before, after)
    if known_s is None or not any(_is_loaded(recipe) for recipe in sides):
        return (), ()
    if _reading(before) == _reading(after) or not _is_loaded(after):
        first, second = ((known_s,) if _is_loaded(recipe) else () for recipe in sides)
        return first, second
    num_known = profile.num_train + profile.num_val
    num_rows = max(_MIN_ROWS, math.ceil(_LOOK_S * num_known / max(known_s, 1e-9)))
    num_val = 0 if lab.sources.val is None else len(lab.sources.val)
    looks: tuple[list[float], list[float]] = ([], [])
    for at in range(1 + _LOOKS):
        for side in (0, 1) if at % 2 == 0 else (1, 0):
            if _is_loaded(sides[side]):
                watchdog.expect(_LOOK_S)
                example_s = _example_s(lab, sides[side], num_rows)
                looks[side].append(example_s * (lab.num_train(sides[side]) + num_val))
    return tuple(looks[0][1:]), tuple(looks[1][1:])


def _is_loaded(recipe: Recipe) -> bool:
    return recipe.data.where is Where.MEMORY and not recipe.features.cached


def _reading(recipe: Recipe) -> object:
    """Return what decides how long it takes to load."""
    return recipe.loader, recipe.data


def _example_s(lab: Lab, recipe: Recipe, num_rows: int) -> float:
    """Fill memory with so many training examples, or all; gives the seconds of one."""
    source = lab.material(recipe).sources.train
    data = replace(recipe.data, fraction=min(1.0, num_rows / len(source)), where=Where.MEMORY)
    reader = make_train_reader(replace(recipe, data=data), source)
    batches = reader.endless()
    try:
        started = time.perf_counter()
        next(batches)
        return (time.perf_counter() - started) / reader.num_examples
    finally:
        batches.close()
        reader.close()

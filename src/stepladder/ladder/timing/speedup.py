"""Time to a trained model before and after: from interleaved blocks, and epochs by seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from stepladder.config.choices import Where
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.keys import execution_key, features_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import TrialFailed, Watchdog
from stepladder.ladder.timing.interleaved_blocks import (
    MIN_PAIRS,
    PILOT_PAIRS,
    Race,
    Side,
    wanted_blocks,
)
from stepladder.ladder.timing.patience import Patience
from stepladder.ladder.verdict import judge_cost
from stepladder.measuring.blocks.workload import BlockTimes, training_time
from stepladder.measuring.ranks.workload import open_workload
from stepladder.records.ladder import Decision, Interval
from stepladder.records.profile import EpochRange, Profile, TrainingTime
from stepladder.rungs.formulas import checkpoints_s
from stepladder.stats import combined_speedup
from stepladder.training.features.feature_pass import batch_size_on
from stepladder.training.setup.build import make_train_reader

_TWO_LOOKS: Final = 0.975  # at each of two tests, so that both together hold in 95 %
_ONE_LOOK: Final = 0.95
_MIN_SEEDS: Final = 2
_FEW_STEPS: Final = 6
_DOUBT: Final = 1.1  # error factor of the times of a profile
_NEXT_TO_NOTHING: Final = 0.005  # negligible change of a gain by such an error
_COMPILE_S: Final = 30.0
"""Assumed for compiling; the watchdog allows twenty times as much, as large models take minutes."""
COLD_NOISE: Final = 0.15
"""Error of one cold compilation, in 95 % of cases: five of one model took 34 to 42 s."""
_EXTENSION_FRAC: Final = 0.15  # of the budget, for as many blocks again
_LOOKS: Final = 8  # timings of each side, after a first one that reads cold pages
_LOOK_S: Final = 0.2
_MIN_ROWS: Final = 32

Looks = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Length:
    """Length of a recipe's training.

    Attributes:
        epochs, num_validations: means over seeds.
        by_seed: (epochs, validations) of each seed that was trained in full; empty if they are
            fixed.
        seeds: these seeds.
        over_seeds: the epochs as a range; None: they are fixed.
        why_not: why the first of the other seeds did not finish; None: all did.
        why_assumed: why no seed was trained, so that the length is the maximum; None: it is fixed,
            or measured by seed.
    """

    epochs: float
    num_validations: float
    by_seed: tuple[tuple[float, float], ...] = ()
    seeds: tuple[int, ...] = ()
    over_seeds: EpochRange | None = None
    why_not: str | None = None
    why_assumed: str | None = None

    def of_seed(self, time: TrainingTime, idx: int) -> TrainingTime:
        """Return the time with the epochs of one seed."""
        if not self.by_seed:
            return time
        epochs, num_validations = self.by_seed[idx]
        return replace(time, epochs=epochs, num_validations=num_validations)

    def of_seeds(self, seeds: tuple[int, ...]) -> Length:
        """Keep only these seeds, and return the means over them."""
        of_seed = dict(zip(self.seeds, self.by_seed, strict=True))
        kept = tuple(of_seed[seed] for seed in seeds)
        epochs, num_validations = (fmean(numbers) for numbers in zip(*kept, strict=True))
        return replace(
            self, epochs=epochs, num_validations=num_validations, by_seed=kept, seeds=seeds
        )


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A measured speed-up, and the samples behind it.

    Attributes:
        before_s, after_s: time to a trained model by block.
        cut_short: that the budget ran out before all blocks were run, as text; None: it did not.
        is_too_little: whether fewer blocks were run than a verdict needs.
    """

    interval: Interval
    before: TrainingTime
    after: TrainingTime
    before_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()
    cut_short: str | None = None
    is_too_little: bool = False


def length_of(lab: Lab, recipe: Recipe) -> Length:
    """Return the number of epochs that a recipe trains for."""
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
        over_seeds=lab.epoch_range(recipe),
        why_not=next((outcome.why_not for outcome in outcomes if outcome.why_not), None),
        why_assumed=plain.why_not,
    )


def why_no_length(before: Recipe, after: Recipe, lengths: tuple[Length, Length]) -> str | None:
    """Return why the time of two recipes cannot be compared, or None.

    If they differ only in their lengths, an assumed length makes the comparison meaningless.
    """
    if execution_key(before) != execution_key(after):
        return None
    return lengths[0].why_assumed or lengths[1].why_assumed


def pair_lengths(before: Length, after: Length) -> tuple[Length, Length]:
    """Keep the seeds that finished training both before and after the change.

    If either length is fixed, both are returned unchanged.

    Raises:
        TrialFailed: if fewer than two seeds are left.
    """
    if not before.seeds or not after.seeds:
        return before, after
    both = tuple(seed for seed in before.seeds if seed in after.seeds)
    num_seeds = max(len(before.seeds), len(after.seeds))
    if len(both) < min(_MIN_SEEDS, num_seeds):
        why_not = after.why_not or before.why_not
        words = f"{len(both)} of {num_seeds} seeds finished both before and after the change"
        raise TrialFailed(f"{why_not}: {words}" if why_not else words)
    return before.of_seeds(both), after.of_seeds(both)


def few_steps_s(profile: Profile, before: Recipe, recipe: Recipe) -> float:
    """Return the rough time of the first few steps and trunk batches of a recipe, in seconds.

    Good enough to detect what hangs.

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
    time_left: Callable[[], float] | None = None,
    patience: Patience | None = None,
    price: float | None = 1.0,
) -> Speed:
    """Measure the speed-up of the recipe after over the one before.

    If only the length of the training or the frequency of validations differs, both totals use the
    same blocks. No block is run if the ratio of two lengths hardly depends on the time of a step.

    Args:
        time_left: returns the seconds until no further pair is started; None: those of the budget.
        patience: for pairs that no other process disturbs; None: that of the lab.
        price: per hour after, over that before; with it, blocks are timed until the cost is known
            as well as the time would be; None: not known.
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
            workload = open_workload(
                one,
                material.task,
                material.sources,
                device=lab.device,
                cache=folder / name,
                copies=lab.copies,
                fleet=lab.fleet,
            )
            workloads.append(stack.enter_context(closing(workload)))
        race = Race(
            workloads[0],
            workloads[-1],
            block_s=lab.job.ladder.block_s,
            watchdog=watchdog,
            few_steps_s=few_s,
            has_same_features=features_key(before[0]) == features_key(after[0]) is not None,
            patience=patience or lab.patience,
            time_left=time_left or lab.time_left,
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
        interval = bound_gain(lab, race, sides, (before[1], after[1]), price=price)
    num_pairs = len(sides[0].blocks)
    return Speed(
        interval=interval,
        before=sides[0].mean_time(),
        after=sides[1].mean_time(),
        before_s=sides[0].totals_s(),
        after_s=sides[1].totals_s(),
        cut_short=f"the budget ran out after {num_pairs} timed pairs" if race.is_cut else None,
        is_too_little=num_pairs < lab.job.ladder.num_blocks,
    )


def bound_gain(
    lab: Lab,
    race: Race,
    sides: tuple[Side, Side],
    lengths: tuple[Length, Length],
    *,
    price: float | None = 1.0,
) -> Interval:
    """Run as many blocks as the first ones call for, and as many again if undecided.

    Fewer if the budget runs out.

    Args:
        sides: before and after, in the order of the race.
        lengths: of both.
        price: per hour after, over that before; None: not known.

    Returns:
        The speed-up; its bounds hold in 95 % of trials, whether tested once or twice.
    """
    options: LadderConfig = lab.job.ladder
    race.run(*sides, num_blocks=PILOT_PAIRS)
    num_blocks = wanted_blocks(
        sides[0].totals_s(),
        sides[1].totals_s(),
        at_least=options.num_blocks,
        confidence=_TWO_LOOKS,
        price=price or 1.0,
    )
    race.run(*sides, num_blocks=num_blocks)
    pair_s = sum(side.blocks[-1].wall_s for side in sides)
    may_extend = not race.is_cut and num_blocks * pair_s <= lab.allowed_s(_EXTENSION_FRAC)
    look = _bound(sides, lengths, _TWO_LOOKS if may_extend else _ONE_LOOK)
    if may_extend and judge_cost(look, price, options).decision is Decision.UNDECIDED:
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
    """Widen bounds by the error of a compilation: it is timed cold once, and not in the blocks.

    Args:
        times: before and after.
        is_one: whether both share the same compilation, and so its error.
    """
    shares = [time.one_time_s.get("compile", 0.0) / time.total_s for time in times]
    share = abs(shares[0] - shares[1]) if is_one else math.hypot(*shares)
    factor = math.exp(COLD_NOISE * share)
    return replace(interval, low=interval.low / factor, high=interval.high * factor)


def _by_seed(
    times: tuple[TrainingTime, TrainingTime], lengths: tuple[Length, Length]
) -> tuple[list[float], list[float]] | None:
    """Return both totals of each seed; None if both lengths are fixed, or the same.

    Lengths are paired (see `pair_lengths`), or one of them is fixed.
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
    """Return how often a recipe validates."""
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
    """Return True if the ratio of two lengths depends on the time of a step."""
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
    """Set the time of checkpoints for the length of the training."""
    checkpoint_s = checkpoints_s(profile.time, loop_s=time.loop_s, save_s=profile.save_s)
    return replace(time, checkpoint_s=checkpoint_s)


@dataclass(frozen=True, kw_only=True)
class _ToTime:
    """Converts the times of a block to the time to a trained model."""

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
    """Return timings of filling memory before and after; empty if nothing is loaded.

    That of the profile if both read alike, or if `after` loads nothing. Otherwise memory is filled
    with a sample of the examples, by each recipe in turn.
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
    """Return the options that decide how long loading takes."""
    return recipe.loader, recipe.data


def _example_s(lab: Lab, recipe: Recipe, num_rows: int) -> float:
    """Fill memory with `num_rows` training examples, or all; return the seconds per example."""
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

"""Full trainings, each done once: by replay on cached features where that gives the same result."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from stepladder.config.recipe import FeaturesConfig, Recipe, uncompiled
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.ladder.accuracy.folds import Parts, make_folds, near_groups, plain_parts
from stepladder.ladder.keys import learning_key, replay_recipe
from stepladder.ladder.limits.guard import failure_words, free_memory
from stepladder.ladder.trainings.feature_replay import Instruments, MaterialOf
from stepladder.ladder.trainings.stacked import (
    CANNOT_STACK,
    MAX_STACKED_BYTES,
    differ_in_their_end,
    learn_stacked,
    why_not_stacked,
)
from stepladder.ladder.trainings.trial_training import OnEnd, OnValidation, judge_weights, learn
from stepladder.machine.limits import available_memory_bytes
from stepladder.measuring.blocks.workload import Workload
from stepladder.measuring.probe import is_out_of_memory, untouched
from stepladder.records.ladder import Outcome
from stepladder.records.profile import Provenance
from stepladder.task.contract import Task
from stepladder.training.features.head_task import HeadTask
from stepladder.training.setup.build import Sources
from stepladder.training.stopping import Weights

EARLY_FRAC: Final = 1 / 3
"""Share of max_epochs that early stopping is assumed to need, until it is known."""
MAX_FOLDS: Final = 5
STACKED_ROUNDS: Final = 8
PROBE_ROUNDS: Final = 3
"""Times as many seeds, of a trial and of a probe, if many trainings cost little more than one."""
_STACKED_COPIES: Final = 8  # copies of stacked features: read, gathered, gathered again, and spare
_MIN_STACKED: Final = 2


_NUM_TIMED: Final = 40
_NUM_STACKED: Final = 20
_NUM_BEFORE: Final = 2  # the first steps take longer
_BLOCK_S: Final = 0.1


def real_step_s(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, cache: Path
) -> float:
    """Return the time of a step, from a block of real steps."""
    workload = Workload(recipe, task, sources, device=device, cache=cache)
    try:
        return workload.block(_BLOCK_S).step_s
    finally:
        workload.close()


def replayed_step_s(recipe: Recipe, head: HeadTask, parts: Parts, *, device: torch.device) -> float:
    """Return the time of a step, from a short training of a head on features.

    Args:
        recipe: of the replay.
    """
    parts = _unjudged(parts)

    def seconds(num_steps: int) -> tuple[float, float]:
        started = time.perf_counter()
        outcome = learn(
            _of_steps(recipe, num_steps),
            head,
            parts,
            seed=0,
            device=device,
            provenance=Provenance.REPLAYED,
        )
        return time.perf_counter() - started, outcome.epochs

    seconds(_NUM_BEFORE)
    took_s, epochs = seconds(_NUM_TIMED)
    num_rows = len(parts.sources.train) * recipe.data.fraction
    return took_s / max(1.0, epochs * num_rows / recipe.batch.global_batch_size)


def stacked_step_s(
    recipe: Recipe, head: HeadTask, parts: Parts, *, num: int, device: torch.device
) -> float:
    """Return the time of a step of `num` heads at once, without the set-up before the first.

    How much longer it takes than a step of one head depends on the head, the batch, the cores, and
    their load: twenty small heads may take twice as long, or thirty times.

    Args:
        recipe: of the replay; has to support stacking.

    Raises:
        Exception: as `learn_stacked`.
    """
    heads, all_parts = [head] * num, [_unjudged(parts)] * num

    def seconds(num_steps: int) -> float:
        started = time.perf_counter()
        with untouched():
            learn_stacked(_of_steps(recipe, num_steps), heads, all_parts, device=device)
        return time.perf_counter() - started

    before_s = seconds(_NUM_BEFORE)
    took_s = seconds(_NUM_BEFORE + _NUM_STACKED) - before_s
    return max(0.0, took_s) / _NUM_STACKED


def _of_steps(recipe: Recipe, num_steps: int) -> Recipe:
    """Return the recipe of a training that ends after `num_steps` steps."""
    most = max(num_steps, recipe.schedule.max_epochs)
    schedule = replace(recipe.schedule, max_steps=num_steps, max_epochs=most)
    return replace(recipe, schedule=schedule, stopping=replace(recipe.stopping, early=False))


def _unjudged(parts: Parts) -> Parts:
    return replace(parts, sources=replace(parts.sources, val=None, test=None))


@dataclass(kw_only=True)
class Trainings:
    """Trains recipes in full and caches the outcomes.

    Attributes:
        material_of: returns task and sources for a recipe; rows are those of the job.
        num_seeds: trainings of each recipe.
        seed: of the folds.
        folder: private, for features.
        max_features_s: seconds that computing the features of one trunk may take.
        known_features: folder of the job's features that earlier runs have computed; only read.
    """

    material_of: MaterialOf
    device: torch.device
    num_seeds: int
    seed: int
    folder: Path
    max_features_s: float
    known_features: Path | None = None
    _known: dict[tuple[Recipe, int | None, int], Outcome] = field(default_factory=dict)
    _step_s: dict[Recipe, float] = field(default_factory=dict)
    _more_frac: dict[Recipe, float] = field(default_factory=dict)
    _is_stacking_refused: bool = False
    _near: NDArray[np.int64] | None = None

    @cached_property
    def instrument(self) -> Instruments:
        """Features of frozen trunks, and their heads."""
        return Instruments(
            material_of=self.material_of,
            device=self.device,
            folder=self.folder / "features",
            max_s=self.max_features_s,
            known=self.known_features,
        )

    def plain(self, recipe: Recipe) -> Parts:
        """Return the job's own splits for a training of the recipe."""
        return plain_parts(self._sources(recipe), plain=self._plain(recipe))

    def folds(self, recipe: Recipe, *, job: Recipe) -> tuple[Parts, ...]:
        """Return a fold of train and validation together for each seed, the same for all recipes.

        There are at most five folds; further seeds start another round with a new split into folds.
        """
        sources, groups = self._sources(recipe), self.groups(job)
        num_seeds = self.num_seeds * (STACKED_ROUNDS if self.is_stacked(recipe) else 1)
        num_folds = min(self.num_seeds, MAX_FOLDS)
        batch = job.batch.micro_batch_size or job.batch.global_batch_size
        rounds = [
            make_folds(
                sources,
                groups,
                num_folds=num_folds,
                seed=self.seed + idx,
                batch=batch,
                plain=self._plain(recipe),
            )
            for idx in range(-(-num_seeds // num_folds))
        ]
        return tuple(itertools.chain.from_iterable(rounds))[:num_seeds]

    def groups(self, job: Recipe) -> NDArray[np.int64]:
        """Return the group of each example; those with similar features share one.

        Such as shots of one shelf, which `prepare` does not count as near-duplicates.
        """
        if self._near is None:
            features = self.instrument.plain(job)
            held = [features.train, features.val] if features else []
            pool = [source for source in held if isinstance(source, HeldFeatures)]
            sources = self.material_of(job).sources
            num_val = 0 if sources.val is None else len(sources.val)
            alone = np.arange(len(sources.train) + num_val, dtype=np.int64)
            self._near = near_groups(pool) if pool else alone
        return self._near

    def is_known(self, recipe: Recipe, parts: Parts, seed: int) -> bool:
        """Return True if a training was done before."""
        return (learning_key(recipe), parts.fold, seed) in self._known

    def train(self, recipe: Recipe, parts: Parts, seed: int) -> Outcome:
        """Train in full, or return the cached outcome of an equal training."""
        key = learning_key(recipe), parts.fold, seed
        if key not in self._known:
            self._known[key] = self.train_anew(recipe, parts, seed)
        return self._known[key]

    def train_all(
        self,
        recipe: Recipe,
        pairs: Sequence[tuple[Parts, int]],
        *,
        also: Sequence[Recipe] = (),
    ) -> tuple[Outcome, ...]:
        """Train with each pair of parts and seed, many heads at once if possible.

        Args:
            also: if heads are trained at once, the outcomes of those recipes that differ only in
                how they stop are cached too.
        """
        if len(pairs) > 1 and self.is_stacked(recipe):
            self._train_stacked([recipe, *self._told_by(recipe, also)], pairs)
        return tuple(self.train(recipe, *pair) for pair in pairs)

    def is_stacked(self, recipe: Recipe) -> bool:
        """Return True if many trainings of a recipe cost little more than one."""
        is_possible = why_not_stacked(recipe) is None and not self._is_stacking_refused
        return is_possible and self.is_replayed(recipe)

    def forecast_all_s(self, recipe: Recipe, num: int) -> float:
        """Predict the seconds of `num` full trainings."""
        one_s = self.forecast_s(recipe)
        if num < _MIN_STACKED or not self.is_stacked(recipe):
            return num * one_s
        try:
            each_more = self._each_more(uncompiled(recipe), num)
        except CANNOT_STACK:
            self._is_stacking_refused = True
            return num * one_s
        return min(num, 1 + each_more * (num - 1)) * one_s

    def num_within(self, recipe: Recipe, most: int, seconds: float) -> int:
        """Return how many trainings are predicted to finish within `seconds`, at most `most`."""
        fits = (num for num in range(most, 0, -1) if self.forecast_all_s(recipe, num) <= seconds)
        return next(fits, 0)

    def _told_by(self, recipe: Recipe, also: Sequence[Recipe]) -> list[Recipe]:
        key = learning_key(recipe)
        return [other for other in also if differ_in_their_end(key, learning_key(other))]

    def _train_stacked(self, recipes: Sequence[Recipe], pairs: Sequence[tuple[Parts, int]]) -> None:
        """Train what is not known yet of recipes that differ only in how they stop."""

        def is_new(recipe: Recipe, pair: tuple[Parts, int]) -> bool:
            return not self.is_known(recipe, *pair)

        recipes = [one for one in recipes if any(is_new(one, pair) for pair in pairs)]
        new = [pair for pair in pairs if any(is_new(one, pair) for one in recipes)]
        if len(new) < _MIN_STACKED:
            return
        for chunk in self._chunks(new):
            found = self._learn_stacked(recipes, chunk)
            for (parts, seed), outcomes in zip(chunk, found, strict=True):
                for one, outcome in zip(recipes, outcomes, strict=False):
                    self._known[learning_key(one), parts.fold, seed] = outcome

    def _chunks(self, pairs: Sequence[tuple[Parts, int]]) -> Iterator[list[tuple[Parts, int]]]:
        """Yield the pairs in chunks that should fit into memory."""
        first = pairs[0][0].sources.train
        one = first.read(np.arange(1)).inputs
        num_bytes = one.numel() * one.element_size() * len(first)
        limit = min(MAX_STACKED_BYTES, available_memory_bytes() // _STACKED_COPIES)
        size = max(1, limit // max(1, num_bytes))
        for start in range(0, len(pairs), size):
            yield list(pairs[start : start + size])

    def _learn_stacked(
        self, recipes: Sequence[Recipe], pairs: Sequence[tuple[Parts, int]]
    ) -> Sequence[tuple[Outcome, ...]]:
        """Train pairs at once, with recipes that differ only in how they stop; return the outcomes.

        If the loss does not support stacking, only the first recipe is trained, pair by pair.
        """
        recipe = recipes[0]
        tasks = [self.instrument.head(recipe, seed) for _, seed in pairs]
        parts = [part for part, _ in pairs]
        also = [other.stopping for other in recipes[1:]]
        try:
            with untouched():
                return learn_stacked(
                    replay_recipe(recipe, self.device), tasks, parts, device=self.device, also=also
                )
        except CANNOT_STACK:
            self._is_stacking_refused = True
            return [(self.train_anew(recipe, *pair),) for pair in pairs]

    def train_anew(
        self,
        recipe: Recipe,
        parts: Parts,
        seed: int,
        *,
        on_validation: OnValidation | None = None,
        on_end: OnEnd | None = None,
    ) -> Outcome:
        """Train in full, ignoring the cache; running out of memory is an outcome.

        Without compiling, which each training would repeat and which does not change the result.
        """
        recipe = uncompiled(recipe)
        try:
            is_replayed = self.is_replayed(recipe)
            recipe, task = self._as_learnt(recipe, seed)
            return learn(
                recipe,
                task,
                parts,
                seed=seed,
                device=self.device,
                provenance=Provenance.REPLAYED if is_replayed else Provenance.MEASURED,
                on_validation=on_validation,
                on_end=on_end,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            outcome = _without_result(parts, seed, failure_words(error))
        free_memory()
        return outcome

    def judge(self, recipe: Recipe, parts: Parts, weights: Weights, outcome: Outcome) -> Outcome:
        """Evaluate the final weights of a training on the test part."""
        recipe, task = self._as_learnt(recipe, outcome.seed)
        return judge_weights(recipe, task, weights, outcome, parts, device=self.device)

    def forecast_s(self, recipe: Recipe) -> float:
        """Predict the seconds of one full training from a few of its steps.

        With early stopping, a third of max_epochs is assumed.
        """
        recipe = uncompiled(recipe)
        key = _timed_as(recipe)
        if key not in self._step_s:
            self._step_s[key] = self._time_step(recipe)
        schedule = recipe.schedule
        sources = self.material_of(recipe).sources
        num_train = len(sources.train) * recipe.data.fraction
        steps_per_epoch = max(1.0, num_train / recipe.batch.global_batch_size)
        num_steps = schedule.max_epochs * steps_per_epoch
        if schedule.max_steps is not None:
            num_steps = min(num_steps, schedule.max_steps)
        if recipe.stopping.early and sources.val is not None:
            num_steps *= EARLY_FRAC
        return num_steps * self._step_s[key]

    def is_replayed(self, recipe: Recipe) -> bool:
        """Return True if the recipe is trained by replay on features."""
        return self.instrument.features(recipe) is not None

    def _sources(self, recipe: Recipe) -> Sources:
        return self.instrument.features(recipe) or self.material_of(recipe).sources

    def _plain(self, recipe: Recipe) -> Sources | None:
        """Return the sources without random views, if training examples have them; else None."""
        has_views = self.is_replayed(recipe) and self.instrument.has_views(recipe)
        return self.instrument.plain(recipe) if has_views else None

    def _as_learnt(self, recipe: Recipe, seed: int) -> tuple[Recipe, Task]:
        """Return what is trained: the head on features if that is equivalent, or the whole task."""
        if not self.is_replayed(recipe):
            return recipe, self.material_of(recipe).task
        return replay_recipe(recipe, self.device), self.instrument.head(recipe, seed)

    def _time_step(self, recipe: Recipe) -> float:
        """Return the time of a step, from a short training on features or a block of real steps."""
        if self.is_replayed(recipe):
            head = replay_recipe(recipe, self.device), self.instrument.head(recipe, 0)
            return replayed_step_s(*head, self.plain(recipe), device=self.device)
        material, cache = self.material_of(recipe), self.folder / "forecast"
        # without features a training reads the examples, even if the job would cache features
        recipe = replace(recipe, features=FeaturesConfig())
        return real_step_s(recipe, material.task, material.sources, device=self.device, cache=cache)

    def _each_more(self, recipe: Recipe, num: int) -> float:
        """Return the time that one more head adds to a stacked step, over that of a single head.

        Timed once, with the number of heads of the first call.
        """
        key = _timed_as(recipe)
        if key not in self._more_frac:
            plain = self.plain(recipe)
            num = min(num, len(next(self._chunks([(plain, 0)] * num))))
            seconds = stacked_step_s(
                replay_recipe(recipe, self.device),
                self.instrument.head(recipe, 0),
                plain,
                num=num,
                device=self.device,
            )
            one_s = self._step_s[key]
            self._more_frac[key] = max(0.0, seconds / one_s - 1) / max(1, num - 1)
        return self._more_frac[key]


def _timed_as(recipe: Recipe) -> Recipe:
    """Return the part of a recipe that decides how long a step of its trainings takes."""
    return replace(learning_key(recipe), device=recipe.device)


def _without_result(parts: Parts, seed: int, why_not: str) -> Outcome:
    return Outcome(
        seed=seed,
        fold=parts.fold,
        epochs=0.0,
        num_validations=0.0,
        provenance=Provenance.MEASURED,
        why_not=why_not,
    )

"""Train heads on cached features: where that is valid, it gives the job's result in seconds."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from stepladder.config.choices import Precision
from stepladder.config.recipe import AugmentConfig, BatchConfig, FeaturesConfig, Recipe
from stepladder.errors import ResourceError, UsageError
from stepladder.ladder.accuracy.exactness import Material
from stepladder.ladder.keys import instrument_recipe, model_key
from stepladder.ladder.limits.guard import free_memory
from stepladder.measuring.probe import is_out_of_memory, untouched
from stepladder.models.features import evaluating
from stepladder.task.contract import Task
from stepladder.training.features.feature_pass import TrunkPass, batch_size_on, read_batch
from stepladder.training.features.feature_task import open_features, why_no_features
from stepladder.training.features.head_task import HeadTask
from stepladder.training.setup.build import Sources, make_model, make_trunk_pass

_MAX_HEADS: Final = 64
_MAX_HEADS_BYTES: Final = 100_000_000
"""Memory for cached initial heads: enough for hundreds of small ones."""


@dataclass(kw_only=True)
class Instrument:
    """Computes features once for each trunk and precision, and builds heads.

    Attributes:
        folder: private, for the features.
        known: of the job, with features that earlier runs have computed; only read.
        max_s: seconds that the features of one trunk may take; slower ones are not computed.
    """

    task: Task
    sources: Sources
    device: torch.device
    folder: Path
    max_s: float
    known: Path | None = None
    _features: dict[Recipe, Sources | None] = field(default_factory=dict)
    _refused_s: dict[Recipe, float] = field(default_factory=dict)
    _views: dict[Recipe, int] = field(default_factory=dict)
    _heads: dict[tuple[Recipe, int], HeadTask] = field(default_factory=dict)

    def features(self, recipe: Recipe) -> Sources | None:
        """Return the splits as features; None if training on them is not equivalent."""
        wanted = instrument_recipe(recipe)
        key = _trunk_key(wanted)
        if key not in self._features:
            self._features[key] = self._compute(wanted)
        return self._features[key]

    def num_views(self, recipe: Recipe) -> int:
        """Return the number of random views per training example in the features; 0: no views."""
        is_there = self.features(recipe) is not None
        return self._views.get(_trunk_key(instrument_recipe(recipe)), 0) if is_there else 0

    def refused_s(self, recipe: Recipe) -> float | None:
        """Return the predicted seconds of features if they take too long, else None."""
        self.features(recipe)
        return self._refused_s.get(_trunk_key(instrument_recipe(recipe)))

    def head(self, recipe: Recipe, seed: int) -> HeadTask:
        """Return the task of the recipe's head, initialised from a seed."""
        seeded = replace(recipe, seed=seed)
        key = _without_bf16(model_key(seeded)), seed
        if key not in self._heads:
            task = copy.copy(self.task)
            with untouched():
                model = make_model(instrument_recipe(seeded), task, self.device)
            is_random = task.is_random_before_head
            num_views = recipe.features.cached_views if is_random else 0
            head = HeadTask(task, model, seed=seed, num_views=num_views)
            most = max(_MAX_HEADS, _MAX_HEADS_BYTES // max(1, head.num_bytes))
            if len(self._heads) >= most:
                del self._heads[next(iter(self._heads))]
            self._heads[key] = head
        return self._heads[key]

    def _compute(self, recipe: Recipe) -> Sources | None:
        """Compute the features; None if they are not valid, take too long or do not fit."""
        task = copy.copy(self.task)
        with untouched():
            model = make_model(recipe, task, self.device)
            way = make_trunk_pass(recipe, task, model, device=self.device)
            refusal = why_no_features(way, recipe.train, self.sources.train)
            if refusal is not None:
                return None
            self._views[_trunk_key(recipe)] = way.num_views
            try:
                forecast_s = self._forecast_s(way, recipe.data.fraction)
                if forecast_s > self.max_s:
                    self._refused_s[_trunk_key(recipe)] = forecast_s
                    return None
                return open_features(
                    replace(recipe, batch=BatchConfig()),
                    task,
                    model,
                    self.sources,
                    folder=self.folder,
                    device=self.device,
                    known=self.known,
                )
            except (ResourceError, UsageError, RuntimeError, MemoryError) as error:
                is_ours = isinstance(error, (ResourceError, UsageError))
                if not (is_ours or is_out_of_memory(error)):
                    raise
        # features are optional: the job itself is trained instead
        free_memory()
        for part in self.folder.glob("*.partial"):
            shutil.rmtree(part, ignore_errors=True)
        return None

    def _forecast_s(self, way: TrunkPass, fraction: float) -> float:
        """Predict the seconds of all features from the second of two batches.

        Each example is read once, and each of its views passes through the trunk.

        Args:
            fraction: share of the training examples that is used.
        """
        train = self.sources.train
        num_train = len(train) * fraction
        num_val = 0 if self.sources.val is None else len(self.sources.val)
        num_passes = num_train * max(1, way.num_views) + num_val
        rows = np.arange(min(batch_size_on(self.device), len(train)))
        read_s = pass_s = 0.0
        with evaluating(way.model):
            for _ in range(2):
                started = time.perf_counter()
                batch = read_batch(train, rows)
                read_s = time.perf_counter() - started
                way.features(batch).cpu()
                pass_s = time.perf_counter() - started - read_s
        return (read_s * (num_train + num_val) + pass_s * num_passes) / len(rows)


def _trunk_key(recipe: Recipe) -> Recipe:
    """Return the part of a recipe that identifies its features."""
    return replace(model_key(recipe), seed=0, device=recipe.device)


def _without_bf16(recipe: Recipe) -> Recipe:
    """Return the recipe in fp32 instead of bf16 autocast: the initial weights are the same."""
    if recipe.device.precision is not Precision.BF16:
        return recipe
    return replace(recipe, device=replace(recipe.device, precision=Precision.FP32))


MaterialOf = Callable[[Recipe], Material]
"""Returns task and sources for a recipe."""


@dataclass(kw_only=True)
class Instruments:
    """Features of frozen trunks and their heads, separate for each form that changes the pixels.

    Attributes:
        folder, max_s, known: of each Instrument.
    """

    material_of: MaterialOf
    device: torch.device
    folder: Path
    max_s: float
    known: Path | None = None
    _by_form: dict[bool, Instrument] = field(default_factory=dict)

    def features(self, recipe: Recipe) -> Sources | None:
        """Return the splits as features; None if training on them is not equivalent.

        Also None if there are only random views of training examples, which cannot be evaluated.
        """
        found = self._of(recipe).features(recipe)
        has_plain = not self.has_views(recipe) or self.plain(recipe) is not None
        return found if has_plain else None

    def plain(self, recipe: Recipe) -> Sources | None:
        """Return the splits as features without random views; None if the task draws its own."""
        if not self.has_views(recipe):
            return self._of(recipe).features(recipe)
        plain = replace(recipe, augment=AugmentConfig(), features=FeaturesConfig())
        return self._of(recipe).features(plain)

    def has_views(self, recipe: Recipe) -> bool:
        """Return True if the features of training examples are those of random views."""
        return self._of(recipe).num_views(recipe) > 0

    def refused_s(self, recipe: Recipe) -> float | None:
        """Return the predicted seconds of features if they take too long, else None."""
        return self._of(recipe).refused_s(recipe)

    def head(self, recipe: Recipe, seed: int) -> HeadTask:
        """Return the task of the recipe's head, initialised from a seed."""
        return self._of(recipe).head(recipe, seed)

    def _of(self, recipe: Recipe) -> Instrument:
        form = recipe.loader.scaled_decode
        if form not in self._by_form:
            material = self.material_of(recipe)
            self._by_form[form] = Instrument(
                task=material.task,
                sources=material.sources,
                device=self.device,
                folder=self.folder,
                max_s=self.max_s,
                known=self.known,
            )
        return self._by_form[form]

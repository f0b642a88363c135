"""One instrument for each form of the pixels, and features without random views to judge by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from stepladder.config.recipe import AugmentConfig, FeaturesConfig, Recipe
from stepladder.ladder.accuracy.exactness import Material
from stepladder.ladder.trainings.feature_replay import Instrument
from stepladder.ladder.trainings.head_task import HeadTask
from stepladder.training.setup.build import Sources

MaterialOf = Callable[[Recipe], Material]
"""Gives task and sources as a recipe reads them."""


@dataclass(kw_only=True)
class Instruments:
    """Features of frozen trunks and their heads, apart for each form that changes the pixels.

    Attributes:
        folder, max_s: of each Instrument.
    """

    material_of: MaterialOf
    device: torch.device
    folder: Path
    max_s: float
    _by_form: dict[bool, Instrument] = field(default_factory=dict)

    def features(self, recipe: Recipe) -> Sources | None:
        """Give the splits as features; None where the head does not learn the same from them.

        Nor where training examples come in random views alone: nothing could be judged by them.
        """
        found = self._of(recipe).features(recipe)
        has_plain = not self.has_views(recipe) or self.plain(recipe) is not None
        return found if has_plain else None

    def plain(self, recipe: Recipe) -> Sources | None:
        """Give the splits as features without random views; None where the task draws its own."""
        if not self.has_views(recipe):
            return self._of(recipe).features(recipe)
        plain = replace(recipe, augment=AugmentConfig(), features=FeaturesConfig())
        return self._of(recipe).features(plain)

    def has_views(self, recipe: Recipe) -> bool:
        """Say whether features of training examples are those of random views."""
        return self._of(recipe).num_views(recipe) > 0

    def refused_s(self, recipe: Recipe) -> float | None:
        """Give the seconds of features that take too long; None: they do not, or are not valid."""
        return self._of(recipe).refused_s(recipe)

    def head(self, recipe: Recipe, seed: int) -> HeadTask:
        """Give the task of the recipe's head, its first weights drawn from a seed."""
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
            )
        return self._by_form[form]

"""Use a larger trunk, if the device has idle capacity."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, NamedTuple

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import Recipe
from stepladder.measuring.model.larger_trunks import FAMILIES, trunk_cost
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Against, Rung
from stepladder.rungs.formulas import num_kept, predict_time, scale_model

_BUSY_MFU = 0.5
"""Model FLOPs utilisation from which the device has little idle capacity."""


class _Growth(NamedTuple):
    """The larger trunk over this one.

    Attributes:
        flops: ratio of the FLOPs; width: of the features.
    """

    flops: float
    width: float


class LargerModel(Rung):
    """Use idle capacity for the next larger trunk whose weights are available.

    A climb for accuracy tries it on a busy device as well, and without pretrained weights if the
    model starts from random ones.

    Trades: time, and memory at inference, for accuracy.
    Source: Tan and Le 2019, "EfficientNet", arXiv:1905.11946; Databricks 2019, "How (Not) To
    Scale Deep Learning in 6 Easy Steps", step 3 (a larger network as another use of spare
    capacity).
    """

    name: ClassVar[str] = "larger_model"
    level: ClassVar[int] = 7
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    against: ClassVar[Against | None] = Against.TRAINING

    def __init__(self, *, needs_idle: bool = True) -> None:
        self._needs_idle = needs_idle

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if no weights are available, or the device is busy."""
        if not profile.is_built_in:
            return "the task builds its own model"
        larger = self._next(profile, recipe)
        if larger is None:
            return "no weights of a larger trunk are available"
        if self._needs_idle and profile.mfu is not None and profile.mfu >= _BUSY_MFU:
            what = "the trunk's pass" if recipe.features.cached else "the step"
            return f"no idle capacity: {what} reaches {100 * profile.mfu:.0f} % of peak FLOP/s"
        if self._growth(profile, recipe) is None:
            return f"the FLOPs of {larger} are not known"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by the ratio of the trunks' FLOPs."""
        larger, growth = self._next(profile, recipe), self._growth(profile, recipe)
        assert growth is not None  # refused before
        return predict_time(
            self.name,
            profile,
            scale_model(profile, recipe, growth.flops),
            inputs={"flops_ratio": growth.flops},
            note=f"{larger}: {growth.flops:.1f} times the FLOPs, assumed to take as much more time",
        )

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:
        """Return the bytes of cached features of the larger trunk."""
        growth = self._growth(profile, recipe) if recipe.features.cached else None
        if growth is None:
            return 0
        example_bytes = growth.width * (profile.feature_bytes or 0)
        return math.ceil(example_bytes * num_kept(profile, recipe.features))

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use the larger trunk, with weights from the hub, or random ones as before."""
        name = self._next(profile, recipe) or recipe.model.name
        weights = WeightsSource.NONE if self._is_random(recipe) else WeightsSource.HUB
        return replace(recipe, model=replace(recipe.model, name=name, weights=weights))

    def _is_random(self, recipe: Recipe) -> bool:
        """Return True if the larger trunk starts from random weights, as this one does."""
        return not self._needs_idle and recipe.model.weights is WeightsSource.NONE

    def _next(self, profile: Profile, recipe: Recipe) -> str | None:
        """Return the next larger trunk; the profile lists them from small to large."""
        names, name = profile.larger_trunks, recipe.model.name
        if self._is_random(recipe):
            names = next((family for family in FAMILIES if name in family), ())
        rest = names[names.index(name) + 1 :] if name in names else names
        return rest[0] if rest else None

    def _growth(self, profile: Profile, recipe: Recipe) -> _Growth | None:
        """Compare the next larger trunk with this one; None if its cost cannot be counted."""
        larger = self._next(profile, recipe)
        side = math.isqrt(profile.example_bytes // 3)
        now = trunk_cost(recipe.model.name, side)
        then = trunk_cost(larger, side) if larger else None
        if now is None or then is None or now.flops == 0:
            return None
        return _Growth(then.flops / now.flops, then.num_features / now.num_features)

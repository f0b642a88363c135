"""A trunk that has learnt before."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time


class Pretrained(Rung):
    """Start from a trunk that was trained on many pictures, instead of from random weights.

    Trades: whatever bias its training data had; its preprocessing has to be kept.
    Source: Yosinski et al. 2014, "How transferable are features in deep neural networks?",
    arXiv:1411.1792; step 0 of Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy
    Steps".
    """

    name: ClassVar[str] = "pretrained"
    level: ClassVar[int] = 2
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where the weights are not ours to choose."""
        if not profile.is_built_in:
            return "the task builds its own model"
        if profile.is_pretrained or recipe.model.weights is not WeightsSource.NONE:
            return "already on"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Say nothing on the accuracy: how near the pictures are to ImageNet's is not known."""
        note = "the time stays as it is; what accuracy it gives is measured"
        return predict_time(self.name, profile, profile.time, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Take the packaged weights, or for another trunk those of the hub."""
        default = ModelConfig()  # the trunk whose weights come with the installation
        is_packaged = recipe.model.name == default.name
        weights = default.weights if is_packaged else WeightsSource.HUB
        return replace(recipe, model=replace(recipe.model, weights=weights))

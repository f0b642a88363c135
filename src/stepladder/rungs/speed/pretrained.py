"""Use a pretrained trunk."""

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
    """Start from a pretrained trunk instead of random weights.

    Trades: the bias of its training data; its preprocessing has to be used.
    Source: Yosinski et al. 2014, "How transferable are features in deep neural networks?",
    arXiv:1411.1792; step 0 of Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy
    Steps".
    """

    name: ClassVar[str] = "pretrained"
    level: ClassVar[int] = 2
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if the task builds its own model."""
        if not profile.is_built_in:
            return "the task builds its own model"
        if profile.is_pretrained or recipe.model.weights is not WeightsSource.NONE:
            return "already on"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Assume the same time; the accuracy depends on the similarity to ImageNet."""
        note = "assumes the same time; the accuracy gain is measured, not predicted"
        return predict_time(self.name, profile, profile.time, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Use the packaged weights, or those of the hub for another trunk."""
        default = ModelConfig()  # the trunk whose weights come with the installation
        is_packaged = recipe.model.name == default.name
        weights = default.weights if is_packaged else WeightsSource.HUB
        return replace(recipe, model=replace(recipe.model, weights=weights))

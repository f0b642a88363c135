"""A hidden layer in the head."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy, predict_as_long
from stepladder.rungs.contract import Against

_WIDTHS = (512, 128)


class HiddenLayer(Remedy):
    """Add a hidden layer of 512 or 128 units before the classifier.

    Trades: weights, and time of the head, which is small compared with the trunk.
    Source: Kornblith et al. 2019, "Do Better ImageNet Models Transfer Better?", arXiv:1805.08974
    (limits of a linear head on a frozen trunk).
    """

    name: ClassVar[str] = "hidden_layer"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if the task builds its own model, or the head has a hidden layer."""
        if not profile.is_built_in:
            return "the task builds its own model"
        return f"already on: {recipe.head.hidden} units" if recipe.head.hidden else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Assume the same time: that of the layer is small, and will be measured."""
        return predict_as_long(self.name, profile, note="the cost of the layer is not included")

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return one variant per width."""
        heads = [replace(recipe.head, hidden=width) for width in _WIDTHS]
        return tuple(replace(recipe, head=head) for head in heads)

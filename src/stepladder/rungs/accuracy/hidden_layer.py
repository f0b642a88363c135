"""One more layer in the head."""

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
    """Put one more layer of 512 or 128 units before the classifier.

    Trades: weights, and time on the head, which is little beside that of the trunk.
    Source: Kornblith et al. 2019, "Do Better ImageNet Models Transfer Better?", arXiv:1805.08974
    (what a linear head on a frozen trunk leaves).
    """

    name: ClassVar[str] = "hidden_layer"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where the head is not ours, or has such a layer."""
        if not profile.is_built_in:
            return "the task builds its own model"
        return f"already on, {recipe.head.hidden} wide" if recipe.head.hidden else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Count no more time: it is measured, and small beside that of the trunk."""
        return predict_as_long(self.name, profile, note="the layer itself is not counted")

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return a width each."""
        heads = [replace(recipe.head, hidden=width) for width in _WIDTHS]
        return tuple(replace(recipe, head=head) for head in heads)

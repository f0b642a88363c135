"""Label smoothing."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against

_SHARE = 0.1


class LabelSmoothing(Remedy):
    """Smooth labels: spread a tenth of each target over all classes, against over-confidence.

    Trades: less sharp probabilities; the loss without smoothing judges.
    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", 7,
    arXiv:1512.00567; Müller et al. 2019, "When Does Label Smoothing Help?", arXiv:1906.02629.
    """

    name: ClassVar[str] = "label_smoothing"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if the task defines its own loss, or label smoothing is on."""
        if not profile.is_built_in:
            return "the task defines its own loss"
        share = recipe.loss.label_smoothing
        return f"already on: {share:g}" if share else None

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Set label smoothing to a tenth."""
        return replace(recipe, loss=replace(recipe.loss, label_smoothing=_SHARE))

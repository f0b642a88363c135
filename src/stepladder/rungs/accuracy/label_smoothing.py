"""Targets that are not quite certain."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against

_SHARE = 0.1


class LabelSmoothing(Remedy):
    """Spread a tenth of each target over all classes, against over-confidence.

    Trades: probabilities that are less sharp; the plain loss is what judges.
    Source: Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", 7,
    arXiv:1512.00567; Müller et al. 2019, "When Does Label Smoothing Help?", arXiv:1906.02629.
    """

    name: ClassVar[str] = "label_smoothing"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where the loss is not ours, or is smoothed."""
        if not profile.is_built_in:
            return "the task has its own loss"
        share = recipe.loss.label_smoothing
        return f"already on: {share:g}" if share else None

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Spread a tenth."""
        return replace(recipe, loss=replace(recipe.loss, label_smoothing=_SHARE))

"""Dropout in the head."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against

_SHARES = (0.5, 0.2)


class Dropout(Remedy):
    """Apply dropout before the classifier, at a rate of one half or one fifth.

    Trades: epochs, as each step learns less; a higher training error.
    Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
    Overfitting", JMLR 15.
    """

    name: ClassVar[str] = "dropout"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if the task builds its own model, or the head has dropout."""
        if not profile.is_built_in:
            return "the task builds its own model"
        return f"already on: {recipe.head.dropout:g}" if recipe.head.dropout else None

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return one variant per rate."""
        heads = [replace(recipe.head, dropout=share) for share in _SHARES]
        return tuple(replace(recipe, head=head) for head in heads)

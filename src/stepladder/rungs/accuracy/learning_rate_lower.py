"""A lower learning rate, for a training that swings about what it could reach."""

from __future__ import annotations

from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import LEAST_LR, Remedy, with_lr
from stepladder.rungs.contract import Against

_SHARES = (0.1, 1 / 3, 1 / 30)


class LearningRateLower(Remedy):
    """Lower the learning rate, by what gets most right of a third, a tenth and a thirtieth.

    Too high a rate looks like a model that is too small: it gets wrong what it learns from, and
    goes on doing so.

    Trades: epochs, where the rate was right; then it is dropped.
    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186.
    """

    name: ClassVar[str] = "learning_rate_lower"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse where it is next to nothing already."""
        return None if self._within(recipe) else f"the learning rate is {recipe.batch.lr:g} already"

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return a rate each."""
        return tuple(with_lr(recipe, share * recipe.batch.lr) for share in self._within(recipe))

    def _within(self, recipe: Recipe) -> tuple[float, ...]:
        limit = LEAST_LR * (1 - 1e-9)
        return tuple(share for share in _SHARES if share * recipe.batch.lr >= limit)

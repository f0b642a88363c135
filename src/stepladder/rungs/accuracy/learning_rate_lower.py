"""A lower learning rate, for a training that oscillates around its optimum."""

from __future__ import annotations

from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import LEAST_LR, Remedy, with_lr
from stepladder.rungs.contract import Against

_SHARES = (0.1, 1 / 3, 1 / 30)


class LearningRateLower(Remedy):
    """Lower the learning rate, to the best of a third, a tenth and a thirtieth.

    Too high a rate looks like a model that is too small: the training error stays high.

    Trades: epochs, if the rate was right; then the rung is dropped.
    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186.
    """

    name: ClassVar[str] = "learning_rate_lower"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse if it is tiny already."""
        return (
            None if self._within(recipe) else f"the learning rate is already {recipe.batch.lr:.3g}"
        )

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return one variant per rate."""
        return tuple(with_lr(recipe, share * recipe.batch.lr) for share in self._within(recipe))

    def _within(self, recipe: Recipe) -> tuple[float, ...]:
        limit = LEAST_LR * (1 - 1e-9)
        return tuple(share for share in _SHARES if share * recipe.batch.lr >= limit)

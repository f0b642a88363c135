"""A higher learning rate, for a training that ends before it converges."""

from __future__ import annotations

from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy, most_lr, with_lr
from stepladder.rungs.contract import Against

_TIMES = (10.0, 3.0, 30.0)
"""The most promising first: a rate that is only slightly off shows in the curve."""


class LearningRateHigher(Remedy):
    """Raise the learning rate, by the best of 3, 10 and 30 times.

    Trades: training may oscillate or diverge; then the rung is dropped.
    Source: Smith 2017, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186
    (too low a rate looks like a model that is too small).
    """

    name: ClassVar[str] = "learning_rate_higher"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse if the optimizer rarely trains well at a higher rate."""
        if self._within(recipe):
            return None
        most, name = most_lr(recipe), recipe.optimizer.name
        return f"{name} rarely trains well at a learning rate above {most:g}"

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return one variant per rate, up to the largest rate of the optimizer."""
        return tuple(with_lr(recipe, times * recipe.batch.lr) for times in self._within(recipe))

    def _within(self, recipe: Recipe) -> tuple[float, ...]:
        limit = most_lr(recipe) * (1 + 1e-9)
        return tuple(times for times in _TIMES if times * recipe.batch.lr <= limit)

"""Weights that shrink in each step."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.optim.contract import Decay
from stepladder.optim.table import spec_of
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against

_STRENGTHS = {Decay.DECOUPLED: (0.1, 1.0, 0.01), Decay.L2: (1e-3, 1e-2, 0.1)}
"""The likeliest first. Added to the gradient, decay does not shrink with the learning rate twice.
"""


class WeightDecay(Remedy):
    """Shrink matrices and kernels in each step, by what gets most right of three strengths.

    Biases and the scales of norms do not decay. What it means follows the optimiser: AdamW and
    NAdam shrink the weight, SGD and Adam add to its gradient.

    Trades: a training error that is higher.
    Source: Krogh and Hertz 1991, "A Simple Weight Decay Can Improve Generalization"; Loshchilov and
    Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """

    name: ClassVar[str] = "weight_decay"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse where weights decay."""
        decay = recipe.optimizer.weight_decay
        return f"already on: {decay:g}" if decay else None

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return a strength each."""
        strengths = _STRENGTHS[spec_of(recipe.optimizer.name).decay]
        rules = [replace(recipe.optimizer, weight_decay=strength) for strength in strengths]
        return tuple(replace(recipe, optimizer=rule) for rule in rules)

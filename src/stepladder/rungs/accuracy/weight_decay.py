"""Weight decay."""

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
"""The most promising first. L2 decay in the gradient is not scaled by the learning rate twice."""


class WeightDecay(Remedy):
    """Apply weight decay to matrices and kernels, at the best of three strengths.

    Biases and the scales of normalisation layers do not decay. It depends on the optimizer: AdamW
    and NAdam decay the weights directly, SGD and Adam add to the gradient.

    Trades: a higher training error.
    Source: Krogh and Hertz 1991, "A Simple Weight Decay Can Improve Generalization"; Loshchilov and
    Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """

    name: ClassVar[str] = "weight_decay"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse if weight decay is on."""
        decay = recipe.optimizer.weight_decay
        return f"already on: {decay:g}" if decay else None

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Return one variant per strength."""
        strengths = _STRENGTHS[spec_of(recipe.optimizer.name).decay]
        rules = [replace(recipe.optimizer, weight_decay=strength) for strength in strengths]
        return tuple(replace(recipe, optimizer=rule) for rule in rules)

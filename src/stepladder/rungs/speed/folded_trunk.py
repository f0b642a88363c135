"""Fold BatchNorm layers of a frozen trunk into its convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_replayed


class FoldedTrunk(Rung):
    """Fold each BatchNorm layer of a frozen trunk into the convolution before it.

    In evaluation mode a BatchNorm layer is one multiplication and one addition per channel, which
    the convolution's weights and bias can include. On the CPU the activation after it is fused into
    the convolution too.

    Trades: nothing while the trunk is frozen; later fine-tuning starts from unfolded weights.
    Source: Jacob et al. 2018, "Quantization and Training of Neural Networks", 3.2,
    arXiv:1712.05877.
    """

    name: ClassVar[str] = "folded_trunk"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if BatchNorm layers are trained, or if there are no such layers."""
        reasons = {
            "already on": recipe.model.fold_batchnorm,
            "the model is not of the form head(trunk(x))": not profile.has_head,
            "the trunk is trained, with its BatchNorm layers": not profile.is_trunk_frozen,
            "the model has no BatchNorm layer": profile.num_batchnorm == 0,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by its operations replayed without BatchNorm."""
        return predict_replayed(self.name, profile, recipe, variant="folded")

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on folding."""
        return replace(recipe, model=replace(recipe.model, fold_batchnorm=True))

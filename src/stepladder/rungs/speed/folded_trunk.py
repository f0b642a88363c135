"""BatchNorm folded into the convolutions of a frozen trunk."""

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

    In evaluation mode a BatchNorm layer is one multiplication and one addition a channel, which the
    convolution's weights and bias can carry. On the CPU the activation after it is computed inside
    the convolution too.

    Trades: nothing while the trunk stays frozen; a later fine-tune starts from unfolded weights.
    Source: Jacob et al. 2018, "Quantization and Training of Neural Networks", 3.2,
    arXiv:1712.05877.
    """

    name: ClassVar[str] = "folded_trunk"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where BatchNorm learns, or there is none."""
        reasons = {
            "already on": recipe.model.fold_batchnorm,
            "the model has no form head(trunk(x))": not profile.has_head,
            "the trunk learns, and its BatchNorm layers with it": not profile.is_trunk_frozen,
            "the model has no BatchNorm layer": profile.num_batchnorm == 0,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by its operations replayed without BatchNorm."""
        return predict_replayed(self.name, profile, recipe, variant="folded")

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Ask for folding."""
        return replace(recipe, model=replace(recipe.model, fold_batchnorm=True))

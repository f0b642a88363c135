"""Advice to add normalisation layers to a model without any."""

from __future__ import annotations

from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against
from stepladder.rungs.formulas import predict_time

_NOTE = (
    "the convolutions have no normalisation layers; add nn.BatchNorm2d or nn.GroupNorm after each "
    "in the Task's build_model, as a recipe cannot"
)


class AddNormalisation(Remedy):
    """Advise to add normalisation layers to a convolutional model without any.

    Trades: a little time per step; BatchNorm makes examples of a batch depend on each other.
    Source: Ioffe and Szegedy 2015, "Batch Normalization", arXiv:1502.03167; Wu and He 2018, "Group
    Normalization", arXiv:1803.08494.
    """

    name: ClassVar[str] = "add_normalisation"
    level: ClassVar[int] = 7
    is_prediction_only: ClassVar[bool] = True
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse if the model has normalisation layers, or no convolutions."""
        if profile.num_norms is None:
            return "not measured: normalisation layers"
        if profile.num_norms or profile.num_batchnorm:
            return "the model already has normalisation layers"
        return "the model has no Conv2d layer" if profile.num_conv2d == 0 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Return the advice, without a predicted gain."""
        return predict_time(self.name, profile, profile.time, note=_NOTE)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Return the recipe unchanged: it does not describe the layers of a Task's model."""
        return recipe

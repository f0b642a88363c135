"""Use the channels-last memory format (NHWC)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import MemoryFormat
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_replayed


class ChannelsLast(Rung):
    """Use the memory format NHWC, the layout that convolution kernels read.

    Trades: one layout copy per batch; no extra memory.
    Source: PyTorch, "Channels Last Memory Format in PyTorch" tutorial.
    """

    name: ClassVar[str] = "channels_last"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if the model has no convolutions."""
        if recipe.device.memory_format is MemoryFormat.CHANNELS_LAST:
            return "already on"
        return "the model has no Conv2d layer" if profile.num_conv2d == 0 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by its operations replayed in this layout."""
        return predict_replayed(self.name, profile, recipe, variant="channels_last")

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Set the memory format."""
        return replace(
            recipe, device=replace(recipe.device, memory_format=MemoryFormat.CHANNELS_LAST)
        )

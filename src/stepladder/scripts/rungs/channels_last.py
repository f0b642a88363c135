"""Lay images out as NHWC, the order that convolution kernels read."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung
from stepladder.scripts.settings import Settings

_GAIN = 1.2


class ChannelsLast(ScriptRung):
    """Convert the weights to channels-last; torch converts the images at the first convolution.

    Trades: one layout copy per batch.
    Source: PyTorch, "Channels Last Memory Format" tutorial.
    """

    name: ClassVar[str] = "channels_last"
    level: ClassVar[int] = 6

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if not facts.models:
            return NO_MODEL
        found = [one for one in facts.models if one.num_conv2d]
        if not found:
            return "the model has no Conv2d layer"
        if settings.channels_last or all(one.is_channels_last for one in found):
            return "already on"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain of forward and backward."""
        return self.of_computing(facts, _GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, channels_last=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the lines before each optimizer, with the script's name of its model."""
        return self.before_optimizers(
            facts, lambda model: f"{model}.to(memory_format=torch.channels_last)"
        )

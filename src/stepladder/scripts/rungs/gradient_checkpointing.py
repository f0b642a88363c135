"""Recompute activations, so that a larger batch fits into the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit
from stepladder.scripts.rungs.larger_batch import FACTOR, LargerBatch
from stepladder.scripts.settings import Settings

_AGAIN = 1 / 3
"""Of forward and backward, what a second forward adds."""


class GradientCheckpointing(LargerBatch):
    """Recompute activations in backward, where a larger batch would not fit into the memory.

    For models with a method for it: those of transformers and timm. It makes each step slower, and
    is tried only together with the batch that it makes possible.

    Trades: a second forward in each step, and fewer, larger updates.
    Source: Chen et al. 2016, arXiv:1604.06174.
    """

    name: ClassVar[str] = "gradient_checkpointing"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.checkpointing:
            return "already on"
        if settings.kept_activations:
            return "the memory holds the activations, which are kept by now"
        if facts.bytes_with(FACTOR) <= facts.capacity_bytes:
            return (
                "a larger batch fits into the memory without it: "
                f"{facts.peak_bytes / 1e9:.2g} of {facts.capacity_bytes / 1e9:.3g} GB are used"
            )
        if not any(one.checkpoints_by for one in facts.models):
            return "the model has no method with which it recomputes activations"
        return self.why_not_larger(facts, settings)

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:
        """Predict the gain of the batch, with a second forward."""
        larger = super().predict(facts, settings)
        slower = 1 + _AGAIN * facts.computing_share
        return replace(
            larger, gain=larger.gain / slower, note=f"{larger.note}; a second forward is added"
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        return replace(super().apply(facts, settings), checkpointing=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return a line before each optimizer, and the factors of the batch."""
        larger = super().edits(facts, settings)
        if isinstance(larger, str):
            return larger
        methods = {one.model: one.checkpoints_by for one in facts.models}
        lines = self.before_optimizers(facts, lambda model: f"{model}.{methods[model]}()")
        return lines if isinstance(lines, str) else (*lines, *larger)

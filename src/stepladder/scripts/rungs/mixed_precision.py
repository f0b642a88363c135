"""Compute in bfloat16 where that is safe."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung
from stepladder.scripts.settings import Settings

_GAIN = 1.5


class MixedPrecision(ScriptRung):
    """Run the model under bfloat16 autocast; weights and their updates stay fp32.

    Trades: precision of activations and gradients, which is judged by the loss.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", arXiv:1710.03740; PyTorch,
    `torch.autocast`.
    """

    name: ClassVar[str] = "mixed_precision"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.autocast or facts.uses_autocast:
            return "already on: the script uses autocast"
        if not facts.models:
            return NO_MODEL
        if settings.single_precision:
            return "single_precision casts the model's inputs and outputs already"
        if facts.dtype != "float32":
            return f"the weights are {facts.dtype}"
        if not facts.has_bfloat16:
            return "this processor has no instructions for bfloat16"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain of forward and backward."""
        return self.of_computing(facts, _GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, autocast=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the lines before each optimizer, with the script's name of its model."""
        device = "cuda" if facts.has_gpu else "cpu"
        autocast = f'torch.autocast("{device}", dtype=torch.bfloat16)'

        def lines(model: str) -> str:
            found = [f"{model}.forward = {autocast}({model}.forward)"]
            if facts.output_is_tensor:
                found.append(
                    f"{model}.register_forward_hook(lambda module, inputs, output: output.float())"
                )
            return "\n".join(found)

        return self.before_optimizers(facts, lines)

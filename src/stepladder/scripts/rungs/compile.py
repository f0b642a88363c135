"""Compile the model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung
from stepladder.scripts.settings import Settings

_GAIN = 1.2


class Compile(ScriptRung):
    """Compile the model's forward and backward into fused kernels.

    Trades: compiling takes tens of seconds, at the first step and for each new shape.
    Source: PyTorch, `torch.nn.Module.compile`.
    """

    name: ClassVar[str] = "compile"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.compiled or any(one.is_compiled for one in facts.optimizers):
            return "already on"
        if not facts.models:
            return NO_MODEL
        if settings.once_per_input:
            return "it would replace what keeps outputs for a second forward"
        if not facts.has_compiler:
            return "torch.compile needs a C++ compiler (g++), and this machine has none"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain of forward and backward."""
        return self.of_computing(facts, _GAIN, "without the time to compile")

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, compiled=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return the lines before each optimizer, with the script's name of its model."""
        return self.before_optimizers(facts, lambda model: f"{model}.compile()")

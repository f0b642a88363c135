"""Compile the model."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_GAIN = 1.2
TRAINING: Final = '''
def compile_training(model):
    """Compiles the passes that train; others, of all kinds of shapes, run as before."""
    model.compile()
    fast = model._compiled_call_impl

    def call(*args, **kwargs):
        trains = model.training and torch.is_grad_enabled()
        return (fast if trains else model._call_impl)(*args, **kwargs)

    model._compiled_call_impl = call
'''.strip()


class Compile(ScriptRung):
    """Compile the model's forward and backward into fused kernels, in passes that train.

    Validation and sampling, with shapes of their own, run as before: each would be compiled again.

    Trades: compiling takes tens of seconds, at the first step and for each new shape.
    Source: PyTorch, `torch.nn.Module.compile`.
    """

    name: ClassVar[str] = "compile"
    level: ClassVar[int] = 6
    costs_once: ClassVar[bool] = True
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
        """Return a function, and a line before each optimizer that calls it."""
        lines = self.before_optimizers(facts, lambda model: f"compile_training({model})")
        if isinstance(lines, str):
            return lines
        starts = {
            line.place.file: replace(line, spot=Spot.START, text=TRAINING, imports=("torch",))
            for line in lines
            if line.place is not None
        }
        return (*starts.values(), *lines)

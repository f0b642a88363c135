"""Compute the output of the model once for a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

KEEPER = '''
class OncePerInput:
    """Computes a model's output once, if it is called again with the same unchanged tensors."""

    def __init__(self, model):
        self.model, self.forward, self.kept = model, model.forward, None

    def __getstate__(self):
        return {**vars(self), "kept": None}  # a copy of the model starts afresh

    def __call__(self, *args, **kwargs):
        inputs = [*args, *kwargs.values()]
        if self.kept is not None:
            old, state, output = self.kept
            is_same = len(old) == len(inputs) and all(a is b for a, b in zip(old, inputs))
            is_usable = output.requires_grad or not torch.is_grad_enabled()
            if is_same and is_usable and state == self.state([*inputs, output]):
                return output if torch.is_grad_enabled() else output.detach()
        self.kept = None
        output = self.forward(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            self.kept = inputs, self.state([*inputs, output]), output
        return output

    def state(self, tensors):
        tensors = [*tensors, *self.model.parameters(), *self.model.buffers()]
        versions = [one._version if isinstance(one, torch.Tensor) else one for one in tensors]
        return [module.training for module in self.model.modules()] + versions
'''.strip()


class RepeatedForwards(ScriptRung):
    """Use the output of a forward again, where the script runs the model twice on one batch.

    Only while inputs, weights, statistics and modes are as they were, so the second output would be
    the same. Not where dropout is active or BatchNorm is in training mode.

    Trades: the output of the last batch stays in memory until the next one.
    """

    name: ClassVar[str] = "repeated_forwards"
    level: ClassVar[int] = 6

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.once_per_input:
            return "already on"
        if not facts.repeated_share:
            return "no model is run twice in a row on one unchanged batch"
        if not facts.models:
            return NO_MODEL
        if settings.compiled or any(one.is_compiled for one in facts.optimizers):
            return "the model is compiled"
        return facts.why_not_once

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that the repeated forwards take no time."""
        share = min(0.95, facts.repeated_share)
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share),
            provenance=Provenance.MODELLED,
            inputs={"repeated_share": share},
            note="the second and later forwards on one batch take no time, a bound",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, once_per_input=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return a small class, and a line before each optimizer that puts it around the model."""
        edits = self.before_optimizers(
            facts, lambda model: f"{model}.forward = OncePerInput({model})"
        )
        if isinstance(edits, str):
            return edits
        files = {edit.place.file: edit.place for edit in edits if edit.place is not None}
        starts = [
            Edit(rung=self.name, spot=Spot.START, place=place, text=KEEPER, imports=("torch",))
            for place in files.values()
        ]
        return (*starts, *edits)

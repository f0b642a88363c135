"""Compute in float32 instead of float64."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import NO_MODEL, Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_TIMES = 2.0
CASTS = '''
def cast_floats(value, old, new):
    """Returns a value in which tensors of one precision have another one."""
    if isinstance(value, torch.Tensor):
        return value.to(new) if value.dtype == old else value
    if isinstance(value, dict):
        items = {key: cast_floats(item, old, new) for key, item in value.items()}
        changed = {key: item for key, item in items.items() if item is not value[key]}
        found = copy.copy(value) if changed else value
        for key, item in changed.items():
            found[key] = item
        return found
    if isinstance(value, (list, tuple)):
        items = [cast_floats(item, old, new) for item in value]
        if all(one is item for one, item in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def inputs_as_float32(model, args, kwargs):
    return cast_floats((args, kwargs), torch.float64, torch.float32)


def outputs_as_float64(model, args, output):
    return cast_floats(output, torch.float32, torch.float64)
'''.strip()


class SinglePrecision(ScriptRung):
    """Let a model with float64 weights compute in float32.

    Its inputs are cast to float32 and its outputs back to float64, so that the script around it is
    as before. Not where the model itself makes float64 tensors, with which float32 weights fail.

    Trades: 29 bits of the mantissa of weights, activations and gradients, which is judged by the
    loss.
    Source: PyTorch, `torch.nn.Module.float`.
    """

    name: ClassVar[str] = "single_precision"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    remark: ClassVar[str] = "the weights, also those that it saves, are float32"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if settings.single_precision:
            return "already on"
        if not facts.models:
            return NO_MODEL
        if facts.dtype != "float64":
            return f"the weights are {facts.dtype}, not float64"
        if settings.autocast or facts.uses_autocast:
            return "the script uses autocast"
        if settings.once_per_input:
            return "the model would receive new tensors for the second forward on one batch"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain of forward, backward and the optimizer."""
        share = min(1.0, facts.computing_share + facts.shares.get("optimizer", 0.0))
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share + share / _TIMES),
            provenance=Provenance.ASSUMED,
            inputs={"share": share},
            note=f"model and optimizer {_TIMES:g} times as fast, with half the bytes",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, single_precision=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return functions after the imports, and lines before each optimizer that use them."""
        edits = self.before_optimizers(
            facts,
            lambda model: (
                f"{model}.float()\n"
                f"{model}.register_forward_pre_hook(inputs_as_float32, with_kwargs=True)\n"
                f"{model}.register_forward_hook(outputs_as_float64)"
            ),
        )
        if isinstance(edits, str):
            return edits
        files = {edit.place.file: edit.place for edit in edits if edit.place is not None}
        starts = [
            Edit(
                rung=self.name,
                spot=Spot.START,
                place=place,
                text=CASTS,
                imports=("copy", "torch"),
            )
            for place in files.values()
        ]
        return (*starts, *edits)

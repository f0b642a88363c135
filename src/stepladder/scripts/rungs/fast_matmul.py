"""Multiply fp32 matrices in TF32."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_GAIN = 1.3


class FastMatmul(ScriptRung):
    """Let a GPU round the factors of fp32 products to TF32.

    Trades: 13 bits of the mantissa of each factor; sums stay fp32.
    Source: PyTorch, `torch.set_float32_matmul_precision`.
    """

    name: ClassVar[str] = "fast_matmul"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    is_for_gpu: ClassVar[bool] = True
    is_for_process: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if not facts.has_gpu:
            return "no GPU"
        return "already on" if facts.has_fast_matmul or settings.fast_matmul else None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain."""
        return self.typical(_GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, fast_matmul=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return two lines after the imports."""
        text = 'torch.set_float32_matmul_precision("high")\ntorch.backends.cudnn.allow_tf32 = True'
        return (Edit(rung=self.name, spot=Spot.START, text=text, imports=("torch",)),)

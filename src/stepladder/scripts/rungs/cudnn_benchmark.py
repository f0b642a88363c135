"""Let cuDNN choose its convolutions by trying them."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Prediction
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_GAIN = 1.1


class CudnnBenchmark(ScriptRung):
    """Time the algorithms of each convolution once, and use the fastest.

    Trades: time for each new shape of the inputs.
    Source: PyTorch, "Performance Tuning Guide", "Enable cuDNN auto-tuner".
    """

    name: ClassVar[str] = "cudnn_benchmark"
    level: ClassVar[int] = 6
    is_for_gpu: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if not facts.has_gpu:
            return "no GPU"
        if not any(one.num_conv2d for one in facts.optimizers):
            return "the model has no Conv2d layer"
        return "already on" if facts.has_cudnn_benchmark or settings.cudnn_benchmark else None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Return a typical gain."""
        return self.typical(_GAIN)

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, cudnn_benchmark=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return a line after the imports."""
        text = "torch.backends.cudnn.benchmark = True"
        return (Edit(rung=self.name, spot=Spot.START, text=text, imports=("torch",)),)

"""Mixed precision: 16-bit arithmetic with 32-bit weights."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import MemoryFormat, Precision
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_replayed


class MixedPrecision(Rung):
    """Compute matrix products and convolutions in 16 bits, and keep weights and sums in 32 bits.

    bf16 if the hardware supports it (its range is that of fp32), else fp16 with loss scaling on a
    GPU.

    Trades: precision of activations and gradients, for half of their memory.
    Source: Micikevicius et al. 2018, "Mixed Precision Training", arXiv:1710.03740; bf16:
    Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training", arXiv:1905.12322.
    """

    name: ClassVar[str] = "mixed_precision"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if 16 bits would be emulated."""
        if recipe.device.precision is not Precision.FP32:
            return "already on"
        if profile.device == "cpu" and not profile.has_bf16:
            return "this CPU has no bf16 instructions"
        if recipe.device.divides_model and not profile.has_bf16:
            return "fp16 has not been tried with a model that is divided among devices"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time by its operations replayed in 16 bits."""
        variant = str(self._precision(profile))
        in_layout = f"channels_last+{variant}"
        is_channels_last = recipe.device.memory_format is MemoryFormat.CHANNELS_LAST
        if is_channels_last and in_layout in profile.op_replays:
            variant = in_layout
        return predict_replayed(self.name, profile, recipe, variant=variant)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Set the 16-bit precision that the hardware supports."""
        return replace(recipe, device=replace(recipe.device, precision=self._precision(profile)))

    def _precision(self, profile: Profile) -> Precision:
        return Precision.BF16 if profile.has_bf16 else Precision.FP16

"""Send gradients as 16-bit numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import AllReduce, GradientCompression
from stepladder.config.recipe import Recipe
from stepladder.parallel.collectives.choice import Choice
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import bucket_sizes
from stepladder.rungs.formulas import predict_time


class CompressedGradients(Rung):
    """Send gradients between devices as bf16, half as many bytes; weights stay in 32 bits.

    Trades: gradients are rounded to 8 bits of precision before they are added up.
    Source: Seide et al. 2014, "1-Bit Stochastic Gradient Descent", Interspeech; PyTorch, "DDP
    Communication Hooks", `bf16_compress_hook`.
    """

    name: ClassVar[str] = "compressed_gradients"
    level: ClassVar[int] = 10
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse on one device, and if gradients are compressed already."""
        if recipe.device.gradient_compression is not GradientCompression.NONE:
            return "already on"
        if recipe.device.count == 1:
            return "one device sends no gradients"
        if profile.devices is None or profile.devices.num != recipe.device.count:
            return "not measured: the connections between these devices"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Halve the bytes of the exchange: step' = step - (T(n) - T(n / 2)).

        T is that of the all-reduce in use: the fitted line of PyTorch's own, or the fastest
        algorithm for a size.
        """
        devices = profile.devices
        assert devices is not None
        sizes = bucket_sizes(profile)
        if recipe.device.all_reduce is AllReduce.AUTO and devices.fit is not None:
            choice = Choice(devices.fit)
            before_s = sum(choice(size).predicted_s for size in sizes)
            after_s = sum(choice(size // 2).predicted_s for size in sizes)
        else:
            fixed_s = len(sizes) * devices.exchange_fixed_s
            before_s = fixed_s + sum(sizes) * devices.exchange_byte_s
            after_s = fixed_s + sum(sizes) // 2 * devices.exchange_byte_s
        now = profile.time
        saved_s = min(max(0.0, before_s - after_s), now.step_s / 2)
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s - saved_s),
            inputs={"exchange_s": before_s, "compressed_s": after_s},
            note=f"{sum(sizes) / 1e6:,.2g} MB of gradients become half as many",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Send bf16."""
        device = replace(recipe.device, gradient_compression=GradientCompression.BF16)
        return replace(recipe, device=device)

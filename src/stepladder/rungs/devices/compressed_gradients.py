"""Send gradients in 16 bits."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.choices import AllReduce, GradientCompression, Precision
from stepladder.config.recipe import Recipe
from stepladder.parallel.collectives.choice import Choice
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Devices, Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import bucket_sizes, devices_of, travel_words
from stepladder.rungs.formulas import predict_time

_PASSES: Final = 3  # over the bytes of a bucket: it is read and written at 4 and 2 bytes a value
_BANDWIDTH: Final = 5e9  # bytes per second, of a core, if it was not measured


class CompressedGradients(Rung):
    """Send gradients as bfloat16, which halves the bytes between devices.

    Each device rounds its gradients to 8 significant bits before they are added up; weights and the
    optimizer stay in float32. What is learnt is compared in trainings on one device that round
    gradients in the same way.

    Trades: digits of the gradients.
    Source: Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training",
    arXiv:1905.12322; docs/collectives.md.
    """

    name: ClassVar[str] = "compressed_gradients"
    level: ClassVar[int] = 11
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse on one device, for gradients of 16 bits, and if rounding takes what it saves."""
        if recipe.device.gradient_compression is not GradientCompression.NONE:
            return "already on"
        if recipe.device.count == 1 or recipe.device.divides_model:
            is_one = recipe.device.count == 1
            return "one device sends no gradients" if is_one else "PyTorch sends the parts"
        if recipe.device.precision is Precision.FP16_MASTER:
            return "the gradients have 16 bits already"
        devices = devices_of(profile, recipe)
        if devices is None:
            return "not measured: the connections between these devices"
        if _saved_s(profile, recipe, devices)[2] <= 0:
            return "rounding the gradients takes longer than sending the other half of them"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Replace the time of the exchange by that of half the bytes, and add that of rounding.

        step' = step - (exchange(n) - exchange(n / 2) - 3 n / bandwidth), for each bucket of n
        bytes. On CPUs the exchange follows the measured times of all-reduces, or the fitted cost of
        messages if the algorithm is chosen by size; on GPUs, where it overlaps with the backward
        pass, the saving is only a bound.
        """
        devices = devices_of(profile, recipe)
        assert devices is not None
        before_s, after_s, saved_s = _saved_s(profile, recipe, devices)
        now, num_bytes = profile.time, profile.trainable_bytes
        saved_s = max(0.0, min(saved_s, now.step_s / 2))
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s - saved_s),
            inputs={
                "exchange_s": before_s,
                "half_exchange_s": after_s,
                "gradient_bytes": float(num_bytes),
            },
            note=travel_words(num_bytes // 2, after_s, now.step_s - saved_s),
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Send bfloat16."""
        device = replace(recipe.device, gradient_compression=GradientCompression.BF16)
        return replace(recipe, device=device)


def _saved_s(profile: Profile, recipe: Recipe, devices: Devices) -> tuple[float, float, float]:
    """Return the seconds of a step's exchange, of half of it, and what is saved."""
    sizes = bucket_sizes(profile)
    before_s = sum(_exchange_s(devices, recipe, size) for size in sizes)
    after_s = sum(_exchange_s(devices, recipe, size // 2) for size in sizes)
    rounding_s = _PASSES * sum(sizes) / (profile.bandwidth_bytes_per_s or _BANDWIDTH)
    return before_s, after_s, before_s - after_s - rounding_s


def _exchange_s(devices: Devices, recipe: Recipe, num_bytes: int) -> float:
    line_s = devices.exchange_fixed_s + num_bytes * devices.exchange_byte_s
    if devices.fit is None or recipe.device.all_reduce is AllReduce.NATIVE:
        return line_s
    return Choice(devices.fit)(num_bytes).predicted_s

"""Use a larger GPU, predicted from its data sheet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from stepladder.config.choices import Precision
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, is_mostly_conv
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.gpus import GPUS, Gpu, gpu_named
from stepladder.rungs.formulas import predict_time, scale_model

_COMPUTE_BOUND_MFU = 0.5
"""Model FLOPs utilisation from which the peak, not the bandwidth, is the limit."""


class LargerGpu(Rung):
    """Move to a GPU with more FLOP/s and bandwidth. Predicted only, as it cannot be tried here.

    Args:
        gpus: to choose among, one of each; with prices, by the lowest cost of the whole training,
            without prices by the shortest time.

    Trades: cost per hour.
    Source: Williams et al. 2009, "Roofline: An Insightful Visual Performance Model", CACM 52(4).
    """

    name: ClassVar[str] = "larger_gpu"
    level: ClassVar[int] = 9
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    is_prediction_only: ClassVar[bool] = True

    def __init__(self, gpus: tuple[Gpu, ...] = GPUS) -> None:
        self.gpus = tuple(min(rows, key=lambda gpu: gpu.devices) for rows in _by_name(gpus))

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse without a GPU to compare with, or if none is faster."""
        if profile.device != "cuda":
            return "this machine has no GPU to compare with"
        if not profile.peak_flops_per_s or not profile.bandwidth_bytes_per_s:
            return "not measured: peak FLOP/s and bandwidth of this GPU"
        gains = [self._predict_for(gpu, profile, recipe).gain for gpu in self.gpus]
        return None if max(gains, default=1.0) > 1 else "no GPU in the list would be faster"

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Choose the GPU with the lowest cost, or the shortest time if prices are not known."""
        faster = [
            (gpu, found)
            for gpu in self.gpus
            if (found := self._predict_for(gpu, profile, recipe)).gain > 1
        ]
        priced = [(gpu, found) for gpu, found in faster if gpu.price_per_hour is not None]
        _, best = min(priced or faster, key=lambda pair: _cost(*pair))
        return best

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Return the recipe unchanged: it cannot change the GPU."""
        return recipe

    def _predict_for(self, gpu: Gpu, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the model's share of the time to another GPU's roofline.

            attained = min(peak, intensity x bandwidth)

        If this GPU attains half of its peak, the peaks are compared; otherwise the intensity is
        derived from the attained FLOP/s and the bandwidth, as if memory were the only limit.
        """
        peak, bandwidth = profile.peak_flops_per_s or 1.0, profile.bandwidth_bytes_per_s or 1.0
        own = self._own(profile)
        is_fp32 = recipe.device.precision is Precision.FP32
        is_conv = is_mostly_conv(profile.conv_frac)
        has_conv = is_conv and gpu.tf32_flops_per_s is not None
        if own is not None:  # compare like with like: data sheet with data sheet
            peak = own.flops_per_s(recipe.device.precision, has_conv=has_conv)
            bandwidth = own.bytes_per_s
        elif is_fp32 and is_conv and not has_conv:
            peak = min(peak, gpu.fp32_flops_per_s)  # this GPU may use TF32: a cautious estimate
        more_flops = gpu.flops_per_s(recipe.device.precision, has_conv=has_conv) / peak
        more_bytes = gpu.bytes_per_s / bandwidth
        if profile.mfu is None:
            speed = min(more_flops, more_bytes)
        elif profile.mfu >= _COMPUTE_BOUND_MFU:
            speed = more_flops
        else:
            speed = min(more_flops / max(profile.mfu, 1e-6), more_bytes)
        note = f"{gpu.name}: an upper bound, as kernel launches and host work take as long"
        if gpu.price_per_hour is not None:
            note += f"; {gpu.price_per_hour:g} per hour"
        inputs = {"more_flops": more_flops, "more_bytes": more_bytes, "speed": speed}
        return predict_time(
            self.name, profile, scale_model(profile, recipe, 1 / speed), inputs=inputs, note=note
        )

    def _own(self, profile: Profile) -> Gpu | None:
        """Find this machine's GPU.

        The user's list may not contain the GPU of this machine, so the built-in list comes second.
        """
        name = profile.device_name
        return gpu_named(self.gpus, name) or gpu_named(GPUS, name)


def _by_name(gpus: tuple[Gpu, ...]) -> Iterable[list[Gpu]]:
    """Group the rows of a list by name: machines with different numbers of one GPU."""
    rows: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        rows.setdefault(gpu.name, []).append(gpu)
    return rows.values()


def _cost(gpu: Gpu, found: Prediction) -> float:
    """Return the price of the training, or its seconds if the price is not known."""
    seconds = found.time.total_s if found.time else 0.0
    return seconds * (1.0 if gpu.price_per_hour is None else gpu.price_per_hour)

"""Use a larger GPU, predicted from its data sheet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.planning.hardware.gpus import GPUS, Gpu, gpu_named
from stepladder.planning.hardware.speed import Rates, roofline_gain
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, scale_model


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
        """Scale the model's share of the time to another GPU's roofline; see `roofline_gain`."""
        gain = roofline_gain(
            Rates.of_profile(profile), gpu, recipe.device.precision, own=self._own(profile)
        )
        assert gain is not None, "why_not checks that peak and bandwidth are known"
        note = f"{gpu.name}: an upper bound, as kernel launches and host work take as long"
        if gpu.price_per_hour is not None:
            note += f"; {gpu.price_per_hour:g} per hour"
        inputs = {
            "more_flops": gain.more_flops,
            "more_bytes": gain.more_bytes,
            "speed": gain.speed,
        }
        return predict_time(
            self.name,
            profile,
            scale_model(profile, recipe, 1 / gain.speed),
            inputs=inputs,
            note=note,
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

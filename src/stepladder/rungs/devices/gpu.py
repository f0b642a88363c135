"""Use the GPU of this machine."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import DeviceChoice
from stepladder.config.recipe import Recipe
from stepladder.planning.hardware.gpus import GPUS, Gpu
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, TrainingTime, is_mostly_conv
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    model_s,
    num_views,
    predict_time,
    reading_s,
    with_one_time,
)

_REFERENCE: Gpu = GPUS[0]
"""The smallest GPU of the list: any other can do at least as much."""


class UseGpu(Rung):
    """Train on the GPU. Advice only, if `device.kind` is cpu: `auto` already uses the GPU.

    Trades: another order of summation, and on recent GPUs convolutions in TF32.
    Source: Williams et al. 2009, "Roofline", CACM 52(4); the loader's bound: Mohan et al. 2021,
    "Analyzing and Mitigating Data Stalls in DNN Training", arXiv:2007.06775.
    """

    name: ClassVar[str] = "gpu"
    level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    is_prediction_only: ClassVar[bool] = True

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse without a GPU, with an upper bound of what one could gain.

        An unused GPU is not tried: a climb stays on the device that it starts on.
        """
        if profile.device == "cuda" or recipe.device.kind is DeviceChoice.CUDA:
            return "already on"
        if not profile.has_cuda:
            return f"no GPU on this machine{self._at_most(profile, recipe)}"
        if recipe.device.kind is DeviceChoice.CPU:
            at_most = self._at_most(profile, recipe)
            return f"use --device.kind auto, not cpu{at_most}"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Bound the gain by the loader's rate and the roofline of the smallest GPU."""
        bound = self._bound(profile, recipe)
        if bound is None:
            note = "no bound is known, as the loader's rate or the FLOPs were not measured"
            return predict_time(self.name, profile, profile.time, note=note)
        return self._prediction(profile, bound)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Return the recipe unchanged: a climb stays on the device that it starts on."""
        return recipe

    def _at_most(self, profile: Profile, recipe: Recipe) -> str:
        """Return in brackets the largest gain of the smallest GPU; empty if it is not known."""
        bound = self._bound(profile, recipe)
        if bound is None:
            return ""
        gain = self._prediction(profile, bound).gain
        load_s, compute_s = self._load_s(profile, recipe) or 0.0, self._compute_s(profile, recipe)
        because = (
            f", limited by the loader's {1 / load_s:,.0f} examples/s" if load_s > compute_s else ""
        )
        times = f"{gain:,.{0 if gain >= 9.95 else 1}f}"
        return f" (with a {_REFERENCE.name}: at most {times}×{because})"

    def _prediction(self, profile: Profile, bound: TrainingTime) -> Prediction:
        return predict_time(
            self.name,
            profile,
            bound,
            inputs={
                "loader_per_s": profile.loader_per_s or 0.0,
                "step_flops": profile.step_flops or 0.0,
                "step_s": profile.time.step_s,
            },
            note=f"an upper bound, from the loader's rate and the roofline of a {_REFERENCE.name}",
        )

    def _bound(self, profile: Profile, recipe: Recipe) -> TrainingTime | None:
        """Return the least time that loader or GPU need; None: the loader's rate is not known.

        A step cannot be shorter than its wait for data: T_real / T_replay bounds the gain of faster
        computing, not the FLOPs alone. If neither is known, there is no bound.
        """
        now, load_s = profile.time, self._load_s(profile, recipe)
        if load_s is None:
            return None
        if recipe.features.cached:
            features_s = now.one_time_s.get("features", 0.0)
            trunk_s = (profile.trunk_s or 0.0) / self._speed(profile, recipe)
            views = num_views(profile, recipe.features)
            train_s = max(load_s, views * trunk_s)  # each example read once
            pass_s = profile.num_train * train_s + profile.num_val * max(load_s, trunk_s)
            return with_one_time(now, features=min(features_s, pass_s))
        step_s = recipe.batch.global_batch_size * max(load_s, self._compute_s(profile, recipe))
        if step_s <= 0:
            return None
        validation_s = max(
            profile.num_val * load_s, now.validation_s / self._speed(profile, recipe)
        )
        return replace(
            now,
            step_s=min(now.step_s, step_s),
            validation_s=min(now.validation_s, validation_s),
        )

    def _load_s(self, profile: Profile, recipe: Recipe) -> float | None:
        """Return the loader's seconds per example, or the step's wait per example."""
        if recipe.features.cached:  # the loader's rate is that of features
            if profile.loader_cpu_s is None:
                return None
            return reading_s(profile, recipe.loader, recipe.features)
        if profile.loader_per_s:
            return 1 / profile.loader_per_s
        if profile.replay_host_s is None:
            return None
        return max(0.0, profile.time.step_s - profile.replay_host_s) / (
            recipe.batch.global_batch_size
        )

    def _compute_s(self, profile: Profile, recipe: Recipe) -> float:
        """Return the least seconds per example that the model needs in a step."""
        flops_s = (profile.step_flops or 0.0) / self._peak(profile, recipe)
        if recipe.features.cached:
            return (profile.trunk_s or 0.0) / self._speed(profile, recipe)
        now_s = model_s(profile) / recipe.batch.global_batch_size
        return max(flops_s, now_s / self._speed(profile, recipe))

    def _speed(self, profile: Profile, recipe: Recipe) -> float:
        """Return the largest speed-up of any operation: by FLOP/s, or by bandwidth."""
        peak, bandwidth = profile.peak_flops_per_s, profile.bandwidth_bytes_per_s
        if not peak or not bandwidth:
            return math.inf
        flops = self._peak(profile, recipe) / peak
        return max(1.0, flops, _REFERENCE.bytes_per_s / bandwidth)

    def _peak(self, profile: Profile, recipe: Recipe) -> float:
        has_conv = is_mostly_conv(profile.conv_frac)
        return _REFERENCE.flops_per_s(recipe.device.precision, has_conv=has_conv)

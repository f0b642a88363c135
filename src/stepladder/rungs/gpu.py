"""The GPU of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import DeviceChoice
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import num_through_trunk, predict_time, reading_s, with_one_time
from stepladder.rungs.gpus import GPUS, Gpu

_REFERENCE: Gpu = GPUS[0]
"""The smallest GPU of the list: what it can do at most, another can do too."""


class UseGpu(Rung):
    """Train on the GPU.

    Trades: other orders of summation, and on recent GPUs convolutions in TF32.
    Source: Williams et al. 2009, "Roofline", CACM 52(4); the loader's bound: Mohan et al. 2021,
    "Analyzing and Mitigating Data Stalls in DNN Training", arXiv:2007.06775.
    """

    name: ClassVar[str] = "gpu"
    level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where there is none, and say what one could give at most."""
        if profile.device == "cuda" or recipe.device.kind is DeviceChoice.CUDA:
            return "already on"
        if profile.has_cuda:
            return None
        bound = self._bound(profile, recipe)
        if bound is None:
            return "no GPU on this machine"
        gain = self._prediction(profile, bound).gain
        limit = ""
        if profile.loader_per_s and not recipe.features.cached:
            limit = f", as the loader gives {profile.loader_per_s:,.0f} examples/s"
        digits = 0 if gain >= 9.95 else 1
        at_most = f"a {_REFERENCE.name}: at most {gain:.{digits}f}×{limit}"
        return f"no GPU on this machine ({at_most})"

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Bound the gain by what the loader gives, and by the FLOPs of the smallest GPU."""
        bound = self._bound(profile, recipe)
        if bound is None:
            note = "not measured: the loader's rate, so no bound is known"
            return predict_time(self.name, profile, profile.time, note=note)
        return self._prediction(profile, bound)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Choose CUDA."""
        return replace(recipe, device=replace(recipe.device, kind=DeviceChoice.CUDA))

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
            note=f"a bound: the loader at full speed, and the peak of a {_REFERENCE.name}",
        )

    def _bound(self, profile: Profile, recipe: Recipe) -> TrainingTime | None:
        """Let each part take what loader or GPU need at least; None: the loader is not known.

        A step cannot be shorter than its wait for data: T_real / T_replay bounds what faster
        computing leaves, not the FLOPs alone.
        """
        now, batch = profile.time, recipe.batch.global_batch_size
        if recipe.features.cached and profile.loader_cpu_s is not None:
            load_s = reading_s(profile, recipe)  # the loader's rate is that of features
        elif profile.loader_per_s:
            load_s = 1 / profile.loader_per_s
        elif profile.replay_host_s is not None:
            load_s = max(0.0, now.step_s - profile.replay_host_s) / batch
        else:
            return None
        peak = _REFERENCE.flops_per_s(recipe.device.precision)
        forward_s = max(load_s, (profile.forward_flops or 0.0) / peak)
        step_s = batch * max(load_s, (profile.step_flops or 0.0) / peak)
        if recipe.features.cached:
            features_s = now.one_time_s.get("features", 0.0)
            pass_s = min(features_s, num_through_trunk(profile, recipe) * forward_s)
            return with_one_time(now, features=pass_s)
        return replace(
            now,
            step_s=min(now.step_s, step_s),
            validation_s=min(now.validation_s, profile.num_val * forward_s),
        )

"""Compile the model with torch.compile."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, scale_model, with_one_time

_START_S = 10.0
"""Extra time of the first compilation in a process."""
_REST_S, _CONV_S, _NORM_S = 2.5, 0.27, 0.35
"""Forward compilation of a head with its loss, a convolution, and a BatchNorm with activation.

Measured on two cores: EfficientNet-Lite0 in 41 to 45 s with its 49 BatchNorm layers and in 22 to
26 s without; heads and small nets in 10 to 13 s, a bag of words in 26 s.
"""
_LEARNING = 3.0
"""Factor if the whole model is trained: EfficientNet-Lite0 in 104 s."""


class Compile(Rung):
    """Compile the model, which fuses pointwise operations into their neighbours.

    Trades: seconds to minutes of compiling before the first step, and again for each new shape;
    disk for the compiled code.
    Source: Ansel et al. 2024, "PyTorch 2", ASPLOS, doi:10.1145/3620665.3640366.
    """

    name: ClassVar[str] = "compile"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if there is no C++ compiler."""
        if recipe.device.compile:
            return "already on"
        if recipe.device.divides_model:
            return "it has not been tried with a model that is divided among devices"
        return None if profile.has_compiler else "no C++ compiler on this machine"

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Remove the time of operations that can be fused, and add the compilation.

        That is the most that fusing can gain. The compilation's time is assumed: ten seconds for
        the first one of a process, and a fraction of a second for each convolution and each
        BatchNorm layer that is not folded, three times as much if the trunk is trained.
        """
        num_norms = 0 if recipe.model.fold_batchnorm else profile.num_batchnorm
        forward_s = _REST_S + _CONV_S * profile.num_conv2d + _NORM_S * num_norms
        compile_s = _START_S + forward_s * (1.0 if profile.is_trunk_frozen else _LEARNING)
        ratio = profile.op_replays.get("pointwise", 1.0)
        after = with_one_time(scale_model(profile, recipe, ratio), compile=compile_s)
        left_s = profile.time.total_s
        is_replayed = "pointwise" in profile.op_replays
        return predict_time(
            self.name,
            profile,
            after,
            provenance=Provenance.REPLAYED if is_replayed else Provenance.MODELLED,
            inputs={"pointwise": ratio, "compile_s": compile_s},
            note=f"compiling takes about {compile_s:.0f} s (assumed), training {left_s:.3g} s",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on compilation."""
        return replace(recipe, device=replace(recipe.device, compile=True))

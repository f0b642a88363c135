"""Use a fused kernel for the optimizer's update."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time


class FusedOptimizer(Rung):
    """Update all weights in one kernel, instead of a few small kernels for each weight.

    Trades: only floating-point rounding.
    Source: PyTorch, documentation of torch.optim, `fused`; for NAdam, `stepladder.optim.nadam`.
    """

    name: ClassVar[str] = "fused_optimizer"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if there is no fused kernel."""
        if recipe.optimizer.fused:
            return "already on"
        spec = spec_of(recipe.optimizer.name)
        if spec.can_fuse(profile.device):
            return None
        place = "CPU" if profile.device == "cpu" else "GPU"
        return f"{spec.title} has no fused kernel on a {place}"

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Scale the optimizer's share of the step by its update replayed with a fused kernel."""
        now, ratio = profile.time, profile.op_replays.get("fused_optimizer")
        if ratio is None:
            note = "not measured: the update was not replayed with a fused kernel"
            return predict_time(self.name, profile, now, note=note)
        optimizer_s = min(profile.phases_s.get("optimizer", 0.0), now.step_s)
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s - optimizer_s * (1 - ratio)),
            provenance=Provenance.REPLAYED,
            inputs={"fused_optimizer": ratio, "optimizer_s": optimizer_s, "step_s": now.step_s},
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on the fused kernel."""
        return replace(recipe, optimizer=replace(recipe.optimizer, fused=True))

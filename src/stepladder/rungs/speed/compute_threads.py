"""Use compute threads on all cores."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, scale_model


class ComputeThreads(Rung):
    """Compute with one thread per core, if the recipe limits the threads to fewer.

    Trades: cores that the limit left to other processes.
    Source: Amdahl 1967, "Validity of the single processor approach to achieving large scale
    computing capabilities", AFIPS.
    """

    name: ClassVar[str] = "compute_threads"
    level: ClassVar[int] = 6

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if all cores are used already, or a GPU computes."""
        if profile.device != "cpu":
            return "the step runs on the GPU"
        threads = recipe.device.threads
        is_limited = 0 < threads < profile.num_cores
        return None if is_limited else "already on: one thread per core"

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Divide the model's share of the time by the growth in threads."""
        threads, cores = recipe.device.threads, profile.num_cores
        return predict_time(
            self.name,
            profile,
            scale_model(profile, recipe, threads / cores),
            inputs={"threads": float(threads), "num_cores": float(cores)},
            note="an upper bound, as if all of the model's work ran in parallel",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Remove the limit."""
        return replace(recipe, device=replace(recipe.device, threads=0))

"""Recompute activations in the backward pass to save memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import batch_doublings, memory_batch, predict_time

_INPUT_FRAC = 2 / 34
"""Share of a transformer block's activations that is its input, all that a recomputed block keeps.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models",
4.1 and 5, arXiv:2205.05198.
"""
_MIN_LAYERS = 4


class GradientCheckpointing(Rung):
    """Recompute activations in the backward pass, so that a larger batch fits into memory.

    Trades: one more forward pass per step, for memory.
    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
    """

    name: ClassVar[str] = "gradient_checkpointing"
    level: ClassVar[int] = 7
    aim: ClassVar[Aim] = Aim.MEMORY
    is_enabler: ClassVar[bool] = True

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if memory does not limit the batch size."""
        if recipe.device.gradient_checkpointing:
            return "already on"
        if profile.is_trunk_frozen or recipe.features.cached:
            return "the trunk is frozen and keeps no activations"
        if len(profile.memory_by_batch) < 2:
            return "not measured: memory at two batch sizes"
        if profile.step_fixed_s is None or profile.step_per_example_s is None:
            return "not measured: the time of a step at three batch sizes"
        wanted = max(batch_doublings(profile, recipe, limit=math.inf), default=0)
        return "memory does not limit the batch size" if wanted <= memory_batch(profile) else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Add a forward pass; see `_kept_frac` for the remaining activations."""
        now = profile.time
        forward_s = profile.phases_s.get("forward", 0.0)
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=now.step_s + forward_s),
            inputs={"forward_s": forward_s, "step_s": now.step_s},
            memory_frac=_kept_frac(profile),
            note="adds a forward pass per step; pays off only if it allows a larger batch",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on checkpointing."""
        return replace(recipe, device=replace(recipe.device, gradient_checkpointing=True))


def _kept_frac(profile: Profile) -> float | None:
    """Return the share of the activations that is kept; None: not known.

    For n convolutions about 2 sqrt(n) of n. For n equal blocks, one block and the inputs of all.
    """
    if profile.num_conv2d > _MIN_LAYERS:
        return 2 / math.sqrt(profile.num_conv2d)
    return 1 / profile.num_blocks + _INPUT_FRAC if profile.num_blocks > 1 else None

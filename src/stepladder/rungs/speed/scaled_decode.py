"""Decode large JPEGs at a fraction of their size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    loader_threads,
    predict_time,
    scale_loading,
    why_no_data_advice,
)
from stepladder.rungs.reading_time import fetch_and_decode_s, still_from_the_store

_COST = {1: 1.0, 2: 0.77, 4: 0.63, 8: 0.48}
"""Time to decode and resize at 1/f of the side length, over that at full size, measured with
synthetic JPEGs of 1,000, 2,000 and 4,000 pixels per side resized to 224, and libjpeg-turbo. The
rest is mostly entropy decoding."""
_LEAD = 4 / 3
"""The decoded side length is at least 4/3 of the required one."""


class ScaledDecode(Rung):
    """Decode JPEGs that are much larger than needed at 1/2, 1/4 or 1/8 of their side length.

    Trades: slightly different pixels, by less than between two common resize filters.
    Source: libjpeg-turbo, documentation of scale_num and scale_denom (DCT scaling).
    """

    name: ClassVar[str] = "scaled_decode"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if no JPEG is decoded, or if pictures are not much larger than needed."""
        reasons = {
            "already on": recipe.loader.scaled_decode,
            "training does not decode JPEGs": (
                profile.store_encoding != "jpeg" or recipe.data.decode_once
            ),
            "the task reads its pictures itself": not profile.is_built_in,
            "not measured: the size of the stored pictures": profile.source_pixels is None,
            "not measured: the cost of reading": profile.loader_cpu_s is None,
            "the stored pictures are not much larger than needed": self._factor(profile) == 1,
        }
        refusal = next((reason for reason, holds in reasons.items() if holds), None)
        return refusal or why_no_data_advice(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale the cost of decoding by a ratio measured elsewhere; the fetch is unchanged."""
        factor, (fetch_s, decode_s) = self._factor(profile), fetch_and_decode_s(profile)
        threads = loader_threads(profile, recipe.loader)
        cost = _COST[factor]
        after = scale_loading(
            profile,
            recipe,
            threads=threads,
            cpu_s=fetch_s + decode_s,
            cpu_s_after=fetch_s + decode_s * cost,
        )
        after = still_from_the_store(after, profile, recipe)
        return predict_time(
            self.name,
            profile,
            after,
            inputs={
                "factor": float(factor),
                "cost": cost,
                "loader_fetch_s": fetch_s,
                "loader_decode_s": decode_s,
            },
            note=f"assumes that decoding at 1/{factor} size takes {100 * cost:.0f} % of the time",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on scaled decoding."""
        return replace(recipe, loader=replace(recipe.loader, scaled_decode=True))

    def _factor(self, profile: Profile) -> int:
        """Return f for a picture of mean size: the largest that leaves 4/3 of the side needed."""
        needed = _LEAD * math.sqrt(max(1, profile.example_bytes) / 3)
        side = math.sqrt(profile.source_pixels or 0.0)
        return next((factor for factor in (8, 4, 2) if side >= factor * needed), 1)

"""A rung that gives room, and the rung that it makes possible, tried as one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs import RUNGS, Rung


class Together(Rung):
    """An enabling rung and another after it: kept together where both pay, or not at all.

    Trades: what both trade.
    """

    aim: ClassVar[Aim] = Aim.TIME
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def __init__(self, enabler: Rung, enabled: Rung) -> None:
        self._enabler = enabler
        self._enabled = enabled
        self.name = enabler.name  # type: ignore[misc]
        self.level = enabler.level  # type: ignore[misc]

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where either does."""
        refusal = self._enabler.why_not(profile, recipe)
        return refusal or self._enabled.why_not(*self._with_room(profile, recipe))

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict the second from what the first is predicted to leave."""
        return self._told(profile, self._enabled.predict(*self._with_room(profile, recipe)))

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Apply both."""
        return self._enabled.apply(*self._with_room(profile, recipe))

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Give the variants of the second upon the first."""
        return self._enabled.variants(*self._with_room(profile, recipe))

    def predict_variant(self, profile: Profile, recipe: Recipe, variant: Recipe) -> Prediction:
        """Predict a variant of the second from what the first is predicted to leave."""
        return self._told(
            profile, self._enabled.predict_variant(*self._with_room(profile, recipe), variant)
        )

    def _told(self, profile: Profile, prediction: Prediction) -> Prediction:
        """Give the prediction of the second as that of both."""
        after = prediction.time
        gain = profile.time.total_s / after.total_s if after is not None else prediction.gain
        return replace(prediction, rung=self.name, gain=gain)

    def _with_room(self, profile: Profile, recipe: Recipe) -> tuple[Profile, Recipe]:
        prediction = self._enabler.predict(profile, recipe)
        return with_room(profile, prediction), self._enabler.apply(profile, recipe)


def with_room(profile: Profile, prediction: Prediction) -> Profile:
    """Give the profile that an enabling rung is predicted to leave."""
    share = 1.0 if prediction.memory_frac is None else prediction.memory_frac
    memory = {batch: int(peak * share) for batch, peak in profile.memory_by_batch.items()}
    return replace(profile, memory_by_batch=memory, time=prediction.time or profile.time)


def with_enabled(
    rung: Rung, profile: Profile, recipe: Recipe, *, rungs: tuple[Rung, ...] = RUNGS
) -> Rung:
    """Give a rung as it is judged: an enabling one with the first rung that it makes possible."""
    if not rung.is_enabler:
        return rung
    room = with_room(profile, rung.predict(profile, recipe))
    after = rung.apply(profile, recipe)
    for other in rungs:
        is_candidate = other.aim is Aim.TIME and not other.is_prediction_only
        if is_candidate and other.why_not(profile, recipe) and not other.why_not(room, after):
            return Together(rung, other)
    return rung

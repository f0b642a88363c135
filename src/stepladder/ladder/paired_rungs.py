"""A rung that frees memory and the rung that it makes possible, tried together."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs import RUNGS, Rung


class Together(Rung):
    """An enabling rung followed by another rung: kept together, or not at all.

    Trades: the sum of both.
    """

    aim: ClassVar[Aim] = Aim.TIME
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def __init__(self, enabler: Rung, enabled: Rung) -> None:
        self._enabler = enabler
        self._enabled = enabled
        self.name = enabler.name  # type: ignore[misc]
        self.level = enabler.level  # type: ignore[misc]

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if either rung does."""
        refusal = self._enabler.why_not(profile, recipe)
        return refusal or self._enabled.why_not(*self._with_room(profile, recipe))

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict the second rung from the profile that the first is predicted to leave."""
        prediction = self._enabled.predict(*self._with_room(profile, recipe))
        return self._told(profile, recipe, prediction)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Apply both."""
        return self._enabled.apply(*self._with_room(profile, recipe))

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return the variants of the second rung, applied after the first."""
        return self._enabled.variants(*self._with_room(profile, recipe))

    def predict_variant(self, profile: Profile, recipe: Recipe, variant: Recipe) -> Prediction:
        """Predict a variant of the second rung after the first."""
        room = self._with_room(profile, recipe)
        return self._told(profile, recipe, self._enabled.predict_variant(*room, variant))

    def _told(self, profile: Profile, recipe: Recipe, prediction: Prediction) -> Prediction:
        """Turn the prediction of the second rung, relative to the first, into that of both."""
        now_s = profile.time.total_s
        room_s = self._with_room(profile, recipe)[0].time.total_s
        return replace(
            prediction,
            rung=self.name,
            gain=prediction.gain * (now_s / room_s if now_s > 0 and room_s > 0 else 1.0),
            inputs={**prediction.inputs, "now_s": now_s},
            note=f"with {self._enabled.name}: {prediction.note}".removesuffix(": "),
        )

    def _with_room(self, profile: Profile, recipe: Recipe) -> tuple[Profile, Recipe]:
        prediction = self._enabler.predict(profile, recipe)
        return with_room(profile, prediction), self._enabler.apply(profile, recipe)


def with_room(profile: Profile, prediction: Prediction) -> Profile:
    """Return the predicted profile after an enabling rung."""
    share = 1.0 if prediction.memory_frac is None else prediction.memory_frac
    memory = {batch: int(peak * share) for batch, peak in profile.memory_by_batch.items()}
    return replace(profile, memory_by_batch=memory, time=prediction.time or profile.time)


def with_enabled(
    enabler: Rung, profile: Profile, recipe: Recipe, *, rungs: tuple[Rung, ...] = RUNGS
) -> Rung:
    """Return an enabling rung together with the first rung that needs the memory it frees."""
    other = _first_enabled(enabler, profile, recipe, rungs)
    return enabler if other is None else Together(enabler, other)


def why_nothing_enabled(
    enabler: Rung, profile: Profile, recipe: Recipe, *, rungs: tuple[Rung, ...] = RUNGS
) -> str | None:
    """Return why an enabling rung is not tried: it costs time, and no other rung needs its memory.

    Call it only if the rung itself does not refuse. None: another rung does.
    """
    if _first_enabled(enabler, profile, recipe, rungs) is not None:
        return None
    is_known = enabler.predict(profile, recipe).memory_frac is not None
    return "no other rung needs the freed memory" if is_known else "the freed memory is not known"


def _first_enabled(
    enabler: Rung, profile: Profile, recipe: Recipe, rungs: tuple[Rung, ...]
) -> Rung | None:
    """Return the first rung that needs the freed memory, or changes something else with it."""
    room = with_room(profile, enabler.predict(profile, recipe))
    tight = replace(room, memory_by_batch=profile.memory_by_batch)  # as slow, but no memory freed
    after = enabler.apply(profile, recipe)
    for other in rungs:
        is_candidate = other.aim is Aim.TIME and not other.is_prediction_only
        if not is_candidate or other.why_not(room, after) is not None:
            continue
        is_blocked = other.why_not(tight, after) is not None
        if is_blocked or other.apply(room, after) != other.apply(tight, after):
            return other
    return None

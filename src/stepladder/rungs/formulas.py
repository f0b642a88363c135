"""From a profile to predicted time: the formulas that several rungs share."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile, Provenance


def predict_replayed(name: str, profile: Profile, recipe: Recipe, *, variant: str) -> Prediction:
    """Scale the model's share of the time by its operations, replayed one by one in a variant.

    A variant that was not replayed gives a gain of 1.
    """
    ratio = profile.op_replays.get(variant, 1.0)
    now = profile.time
    model_s = sum(profile.phases_s.get(phase, 0.0) for phase in ("forward", "backward"))
    one_time = dict(now.one_time_s)
    if recipe.features.cached and "features" in one_time:
        one_time["features"] *= ratio
        after = replace(now, one_time_s=one_time)
    else:
        validation_s = now.validation_s * ratio
        after = replace(now, step_s=now.step_s - model_s * (1 - ratio), validation_s=validation_s)
    return Prediction(
        rung=name,
        gain=now.total_s / after.total_s,
        time=after,
        provenance=Provenance.REPLAYED,
        inputs={variant: ratio, "model_s": model_s, "step_s": now.step_s},
    )

"""What rungs for accuracy share: the range of learning rates, and predictions of the time."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.recipe import Recipe
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.formulas import predict_time

LEAST_LR = 1e-6
_LR_DIGITS = 6


def most_lr(recipe: Recipe) -> float:
    """Return the learning rate above which the recipe's optimiser rarely learns."""
    return spec_of(recipe.optimizer.name).most_lr


def with_lr(recipe: Recipe, lr: float) -> Recipe:
    """Set the learning rate, to six digits as a person would write it."""
    rounded = float(f"{lr:.{_LR_DIGITS}g}")
    return replace(recipe, batch=replace(recipe.batch, lr=rounded))


def predict_as_long(name: str, profile: Profile, *, note: str = "") -> Prediction:
    """Predict the time as it is; what accuracy a remedy gives is not predicted but measured."""
    said = "the time stays as it is; what accuracy it gives is measured"
    return predict_time(name, profile, profile.time, note=f"{note}; {said}" if note else said)

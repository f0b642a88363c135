"""What rungs for accuracy share: their kind, the range of learning rates, and predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
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


class Remedy(Rung):
    """A rung for accuracy. It overrides `apply`, or `variants` where a probe chooses among some."""

    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Take the epochs as equal: where training stops by itself, that is measured."""
        return predict_as_long(self.name, profile)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Return the likeliest of the variants."""
        return self.variants(profile, recipe)[0]

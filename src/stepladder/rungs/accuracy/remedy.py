"""Base class of rungs for accuracy, with the range of learning rates and predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.optim.schedule import round_lr
from stepladder.optim.table import spec_of
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time

LEAST_LR = 1e-6


def most_lr(recipe: Recipe) -> float:
    """Return the learning rate above which the recipe's optimizer rarely trains well."""
    return spec_of(recipe.optimizer.name).most_lr


def with_lr(recipe: Recipe, lr: float) -> Recipe:
    """Set the learning rate, rounded."""
    return replace(recipe, batch=replace(recipe.batch, lr=round_lr(lr)))


def predict_as_long(name: str, profile: Profile, *, note: str = "") -> Prediction:
    """Predict the same time; the accuracy of a remedy is measured, not predicted."""
    said = "assumes the same time; the accuracy gain is measured, not predicted"
    return predict_time(name, profile, profile.time, note=f"{note}; {said}" if note else said)


class Remedy(Rung):
    """A rung for accuracy. It overrides `apply`, or `variants` if a probe chooses among several."""

    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:  # noqa: ARG002
        """Assume the same number of epochs: with early stopping, it is measured."""
        return predict_as_long(self.name, profile)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Return the most promising variant."""
        return self.variants(profile, recipe)[0]

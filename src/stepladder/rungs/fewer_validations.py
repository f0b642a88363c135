"""Validations further apart."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, within_schedule

_LARGE_FRAC = 0.05
"""Share of the time from which on validations are worth saving."""
_EVERY = (2, 3, 5, 10)


class FewerValidations(Rung):
    """Validate after several epochs instead of each, where validations take much of the time.

    Trades: early stopping sees the end later, by patience times the epochs between validations, and
    the best weights are chosen among fewer.
    Source: Prechelt 1998, "Early Stopping, but When?" (strips of several epochs); the share of the
    time that is saved is Amdahl's law.
    """

    name: ClassVar[str] = "fewer_validations"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where validations are cheap, or stopping later would cost more than they do."""
        now = profile.time
        if recipe.stopping.validate_every_steps is not None:
            return "validations go by steps"
        total_s = now.total_s
        share = now.num_validations * now.validation_s / total_s if total_s > 0 else 0.0
        if share < _LARGE_FRAC:
            return f"validations take only {100 * share:.1f} % of the time"
        if self._best(profile, recipe) == recipe.stopping.validate_every_epochs:
            return "stopping later would cost more than fewer validations save"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Trade validations for epochs: with patience p and k epochs between, p (k' - k) more."""
        every, best = recipe.stopping.validate_every_epochs, self._best(profile, recipe)
        after = self._time(profile, recipe, best)
        inputs = {"every": float(every), "then_every": float(best), "epochs": after.epochs}
        note = f"a validation every {best} epochs instead of {every}"
        return predict_time(self.name, profile, after, inputs=inputs, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Set the epochs between validations."""
        every = self._best(profile, recipe)
        return replace(recipe, stopping=replace(recipe.stopping, validate_every_epochs=every))

    def _best(self, profile: Profile, recipe: Recipe) -> int:
        """Give the interval with the least time, in epochs; this one if none has less.

        Without early stopping at least three validations are left, to choose the weights among.
        """
        every = recipe.stopping.validate_every_epochs
        fits = [k for k in _EVERY if k > every and 3 * k <= max(profile.time.epochs, 1)]
        return min((every, *fits), key=lambda k: self._time(profile, recipe, k).total_s)

    def _time(self, profile: Profile, recipe: Recipe, every: int) -> TrainingTime:
        now, stopping = profile.time, recipe.stopping
        patience = stopping.patience if stopping.early else 0
        epochs = now.epochs + patience * (every - stopping.validate_every_epochs)
        epochs = within_schedule(max(epochs, now.epochs), now, recipe)
        return replace(now, epochs=epochs, num_validations=epochs / every)

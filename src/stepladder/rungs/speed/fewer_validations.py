"""Validate less often."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, within_schedule

_LARGE_FRAC = 0.05
"""Share of the time from which reducing validations is worthwhile."""
_EVERY = (2, 3, 5, 10)


class FewerValidations(Rung):
    """Validate every few epochs instead of each, if validations take much of the time.

    The patience of early stopping stays the same in epochs, rounded up to whole intervals.

    Trades: early stopping sees fewer validations, and may stop some epochs later; the best weights
    are chosen among fewer.
    Source: Prechelt 1998, "Early Stopping, but When?" (strips of several epochs); the saved time
    follows Amdahl's law.
    """

    name: ClassVar[str] = "fewer_validations"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    looks_first: ClassVar[tuple[str, ...]] = ("early_stopping",)

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if validations are cheap, or if stopping later would cost more than they do."""
        now = profile.time
        if recipe.stopping.validate_every_steps is not None:
            return "validations are scheduled by steps"
        total_s = now.total_s
        share = now.num_validations * now.validation_s / total_s if total_s > 0 else 0.0
        if share < _LARGE_FRAC:
            return f"validations take only {100 * share:.1f} % of the time"
        if self._best(profile, recipe) == recipe.stopping.validate_every_epochs:
            return "stopping later would cost more than fewer validations save"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict fewer validations; with patience p every k epochs, p' k' - p k more epochs."""
        every, best = recipe.stopping.validate_every_epochs, self._best(profile, recipe)
        after = self._time(profile, recipe, best)
        inputs = {"every": float(every), "then_every": float(best), "epochs": after.epochs}
        note = f"validates every {best} epochs instead of every {every}"
        return predict_time(self.name, profile, after, inputs=inputs, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Set the epochs between validations, with a patience of as many epochs as before."""
        every = self._best(profile, recipe)
        return replace(recipe, stopping=_with_interval(recipe.stopping, every))

    def _best(self, profile: Profile, recipe: Recipe) -> int:
        """Return the interval with the shortest time, in epochs; the current one if none is faster.

        At least three validations remain, to choose the best weights from.
        """
        every = recipe.stopping.validate_every_epochs
        fits = [k for k in _EVERY if k > every and 3 * k <= max(profile.time.epochs, 1)]
        return min((every, *fits), key=lambda k: self._time(profile, recipe, k).total_s)

    def _time(self, profile: Profile, recipe: Recipe, every: int) -> TrainingTime:
        now, stopping = profile.time, recipe.stopping
        later = 0
        if stopping.early:
            later = _patience_epochs(_with_interval(stopping, every)) - _patience_epochs(stopping)
        epochs = within_schedule(now.epochs + later, now, recipe)
        return replace(now, epochs=epochs, num_validations=epochs / every)


def _with_interval(stopping: StoppingConfig, every: int) -> StoppingConfig:
    """Return stopping with another interval, and a patience of at least as many epochs."""
    moved = replace(stopping, validate_every_epochs=every)
    if not stopping.early:
        return moved
    return replace(moved, patience=math.ceil(_patience_epochs(stopping) / every))


def _patience_epochs(stopping: StoppingConfig) -> int:
    return stopping.patience * stopping.validate_every_epochs

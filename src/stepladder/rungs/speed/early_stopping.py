"""Stop training when validations no longer improve."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, Provenance, TrainingTime
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time, schedule_epochs

_PUBLISHED_EPOCHS = 60
_PUBLISHED_EPOCHS_TO_STOP = 11
_PATIENT_EPOCHS = (1, 3, 6, 12, 24)
"""Patience in epochs of the variants among which a probe chooses."""


class EarlyStopping(Rung):
    """Stop when validations no longer improve, with the best or the last weights.

    The monitored metric and the frequency of validations are those of the recipe; the least
    improvement is the default. The first variant has the default patience and restores the best
    weights. With few validation examples, the best weights are best by chance: if one training
    covers many ways to stop, a probe chooses among them, including the last weights and longer
    patience.

    Trades: improvements after a long plateau; one copy of the weights.
    Source: Prechelt 1998, "Early Stopping, but When?"; 60 to 11 epochs at equal accuracy:
    Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy Steps", step 2.
    """

    name: ClassVar[str] = "early_stopping"
    level: ClassVar[int] = 4
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if it is on, or if there are no validation examples."""
        if recipe.stopping.early:
            return "already on"
        return "there are no validation examples" if profile.num_val == 0 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale epochs to where this recipe's curve stops, or by a published ratio."""
        return self.predict_variant(profile, recipe, self.apply(profile, recipe))

    def predict_variant(self, profile: Profile, recipe: Recipe, variant: Recipe) -> Prediction:
        """Predict another patience from where the default patience would have stopped."""
        now, curve, patience = profile.time, profile.curve, variant.stopping.patience
        least = _least_epochs(now, variant)
        longer = (patience - StoppingConfig().patience) * _every_epochs(now, recipe)
        if curve is None:
            ratio = _PUBLISHED_EPOCHS_TO_STOP / _PUBLISHED_EPOCHS
            epochs, provenance = max(now.epochs * ratio + longer, least), Provenance.MODELLED
            note = "assumes a published ratio (60 to 11 epochs), as this job was not run in full"
        else:
            stop = curve.epochs_to_stop
            epochs = now.epochs if stop is None else stop + longer
            if longer < 0:  # the curve does not show when a shorter patience runs out
                epochs = max(epochs, least)
            is_replayed = curve.provenance is Provenance.REPLAYED
            provenance = Provenance.REPLAYED if is_replayed else Provenance.MODELLED
            note = "" if stop else f"did not stop early within {curve.epochs:g} epochs"
        epochs = min(epochs, now.epochs)
        share = epochs / now.epochs if now.epochs > 0 else 1.0
        after = replace(now, epochs=epochs, num_validations=now.num_validations * share)
        inputs = {"epochs": now.epochs, "epochs_to_stop": epochs, "patience": float(patience)}
        if variant != self.apply(profile, recipe):
            note = "; ".join(filter(None, (_ends_when(variant.stopping), note)))
        return predict_time(
            self.name, profile, after, provenance=provenance, inputs=inputs, note=note
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Stop early with the default patience, and restore the best weights."""
        return with_early_stopping(recipe)

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return the defaults, then the last weights with several values of patience.

        Without those whose patience cannot run out before the schedule ends, as they save nothing.
        """
        now = profile.time
        others = [_stopped(recipe, epochs, restore_best=False) for epochs in _PATIENT_EPOCHS]
        end = schedule_epochs(now, recipe)
        may_stop = [other for other in others if _least_epochs(now, other) < end]
        return tuple(dict.fromkeys([self.apply(profile, recipe), *may_stop]))


def with_early_stopping(recipe: Recipe) -> Recipe:
    """Return the recipe that stops early with the default patience, and restores the best weights.

    It validates as often, and monitors the same.
    """
    return _stopped(recipe, StoppingConfig().patience, restore_best=True)


def _stopped(recipe: Recipe, epochs: int, *, restore_best: bool) -> Recipe:
    """Return the recipe that stops after `epochs` epochs without a clear improvement."""
    is_by_epochs = recipe.stopping.validate_every_steps is None
    every = recipe.stopping.validate_every_epochs if is_by_epochs else 1
    stopping = replace(
        recipe.stopping,
        early=True,
        restore_best=restore_best,
        patience=math.ceil(epochs / every),
        min_improvement_frac=StoppingConfig().min_improvement_frac,
        allow_noise=StoppingConfig().allow_noise,
    )
    return replace(recipe, stopping=stopping)


def _every_epochs(now: TrainingTime, recipe: Recipe) -> float:
    """Return the epochs between validations, a fraction if they are scheduled by steps."""
    steps = recipe.stopping.validate_every_steps
    if steps is None:
        return float(recipe.stopping.validate_every_epochs)
    return steps / max(now.steps_per_epoch, 1e-9)


def _least_epochs(now: TrainingTime, stopped: Recipe) -> float:
    """Return the least epochs before stopping: a best validation, then the patience."""
    return (1 + stopped.stopping.patience) * _every_epochs(now, stopped)


def _ends_when(stopping: StoppingConfig) -> str:
    """Describe a way to stop: `patience of 24 validations, last weights`."""
    what = "validation" if stopping.patience == 1 else "validations"
    weights = "best" if stopping.restore_best else "last"
    return f"patience of {stopping.patience} {what}, {weights} weights"

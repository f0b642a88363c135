"""Stopping when validations no longer improve."""

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
"""Epochs without a clear improvement to wait for, where a probe chooses."""


class EarlyStopping(Rung):
    """Stop when validations no longer improve, with the best weights or the last ones.

    What counts as better, and how often it is looked at, stays as the recipe has it; the least
    improvement is that of the defaults. The likeliest is their patience, and the best weights. The
    best of few validation examples are best by chance: where one training tells of many ways to
    stop, a probe chooses among them, the last weights and longer patience included.

    Trades: epochs that might have improved after a long standstill; one copy of the weights.
    Source: Prechelt 1998, "Early Stopping, but When?"; 60 to 11 epochs at equal accuracy:
    Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy Steps", step 2.
    """

    name: ClassVar[str] = "early_stopping"
    level: ClassVar[int] = 4
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where nothing tells when to stop."""
        if recipe.stopping.early:
            return "already on"
        return "there are no validation examples" if profile.num_val == 0 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale epochs to where this recipe's own curve stops, or as was published elsewhere."""
        return self.predict_variant(profile, recipe, self.apply(profile, recipe))

    def predict_variant(self, profile: Profile, recipe: Recipe, variant: Recipe) -> Prediction:
        """Predict another patience from where that of the defaults would have stopped."""
        now, curve, patience = profile.time, profile.curve, variant.stopping.patience
        least = _least_epochs(now, variant)
        longer = (patience - StoppingConfig().patience) * _every_epochs(now, recipe)
        if curve is None:
            ratio = _PUBLISHED_EPOCHS_TO_STOP / _PUBLISHED_EPOCHS
            epochs, provenance = max(now.epochs * ratio + longer, least), Provenance.MODELLED
            note = "assumed from publication (60 to 11 epochs): this job was not trained to its end"
        else:
            stop = curve.epochs_to_stop
            epochs = now.epochs if stop is None else stop + longer
            if longer < 0:  # the curve does not tell how soon less patience is used up
                epochs = max(epochs, least)
            is_replayed = curve.provenance is Provenance.REPLAYED
            provenance = Provenance.REPLAYED if is_replayed else Provenance.MODELLED
            note = "" if stop else f"would not have stopped in {curve.epochs:g} epochs"
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
        """Stop early, as patient as the defaults, and restore the best weights."""
        return self._stopped(recipe, StoppingConfig().patience, restore_best=True)

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return the defaults, then the last weights instead, with other patience.

        Patience that the schedule ends before it can run out is left out: nothing would be saved.
        """
        now = profile.time
        others = [self._stopped(recipe, epochs, restore_best=False) for epochs in _PATIENT_EPOCHS]
        end = schedule_epochs(now, recipe)
        may_stop = [other for other in others if _least_epochs(now, other) < end]
        return tuple(dict.fromkeys([self.apply(profile, recipe), *may_stop]))

    def _stopped(self, recipe: Recipe, epochs: int, *, restore_best: bool) -> Recipe:
        """Stop after so many epochs without a clear improvement."""
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
    """Return the epochs between validations, a part of one where they go by steps."""
    steps = recipe.stopping.validate_every_steps
    if steps is None:
        return float(recipe.stopping.validate_every_epochs)
    return steps / max(now.steps_per_epoch, 1e-9)


def _least_epochs(now: TrainingTime, stopped: Recipe) -> float:
    """Return the epochs that stopping takes: a best validation, and as many more as patience has."""
    return (1 + stopped.stopping.patience) * _every_epochs(now, stopped)


def _ends_when(stopping: StoppingConfig) -> str:
    """Say a way to stop: `24 validations of patience, the last weights`."""
    what = "validation" if stopping.patience == 1 else "validations"
    weights = "best" if stopping.restore_best else "last"
    return f"{stopping.patience} {what} of patience, the {weights} weights"

"""Stopping when validations no longer improve."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time

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
        now, curve = profile.time, profile.curve
        patience, every = variant.stopping.patience, recipe.stopping.validate_every_epochs
        # it takes a best validation, and as many after it as patience has
        least = (1 + patience) * every
        longer = (patience - StoppingConfig().patience) * every
        if curve is None:
            ratio = _PUBLISHED_EPOCHS_TO_STOP / _PUBLISHED_EPOCHS
            epochs, provenance = max(now.epochs * ratio + longer, least), Provenance.MODELLED
            note = "assumed from publication (60 to 11 epochs): this job was not trained to its end"
        else:
            stop = curve.epochs_to_stop
            epochs = now.epochs if stop is None else max(stop + longer, least)
            is_replayed = curve.provenance is Provenance.REPLAYED
            provenance = Provenance.REPLAYED if is_replayed else Provenance.MODELLED
            note = "" if stop else f"would not have stopped in {curve.epochs:g} epochs"
        epochs = min(epochs, now.epochs)
        share = epochs / now.epochs if now.epochs > 0 else 1.0
        after = replace(
            now,
            epochs=epochs,
            num_validations=now.num_validations * share,
            checkpoint_s=now.checkpoint_s * share,
        )
        inputs = {"epochs": now.epochs, "epochs_to_stop": epochs, "patience": float(patience)}
        return predict_time(
            self.name, profile, after, provenance=provenance, inputs=inputs, note=note
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Stop early, as patient as the defaults, and restore the best weights."""
        return self.variants(profile, recipe)[0]

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:  # noqa: ARG002
        """Give the defaults, then the last weights instead, with other patience."""
        found = [self._stopped(recipe, StoppingConfig().patience, restore_best=True)]
        for epochs in _PATIENT_EPOCHS:
            found.append(self._stopped(recipe, epochs, restore_best=False))
        return tuple(dict.fromkeys(found))

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
        )
        return replace(recipe, stopping=stopping)

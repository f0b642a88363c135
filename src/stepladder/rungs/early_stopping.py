"""Stopping when validations no longer improve."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time

_PUBLISHED_EPOCHS = 60
_PUBLISHED_EPOCHS_TO_STOP = 11


class EarlyStopping(Rung):
    """Stop when validations no longer improve, and end with the best weights.

    What counts as better, and how often it is looked at, stays as the recipe has it; patience and
    the least improvement are those of the defaults.

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
        now, curve = profile.time, profile.curve
        if curve is None:
            ratio = _PUBLISHED_EPOCHS_TO_STOP / _PUBLISHED_EPOCHS
            # it takes a best validation, and as many after it as patience has
            least = (1 + StoppingConfig().patience) * recipe.stopping.validate_every_epochs
            epochs, provenance = max(now.epochs * ratio, least), Provenance.MODELLED
            note = "assumed from publication (60 to 11 epochs): this job was not trained to its end"
        else:
            epochs = curve.epochs_to_stop or now.epochs
            is_replayed = curve.provenance is Provenance.REPLAYED
            provenance = Provenance.REPLAYED if is_replayed else Provenance.MODELLED
            note = "" if curve.epochs_to_stop else f"would not have stopped in {curve.epochs:g}"
            note += " epochs" if note else ""
        epochs = min(epochs, now.epochs)
        share = epochs / now.epochs if now.epochs > 0 else 1.0
        after = replace(
            now,
            epochs=epochs,
            num_validations=now.num_validations * share,
            checkpoint_s=now.checkpoint_s * share,
        )
        inputs = {"epochs": now.epochs, "epochs_to_stop": epochs}
        return predict_time(
            self.name, profile, after, provenance=provenance, inputs=inputs, note=note
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Stop early, with the patience of the defaults, and restore the best weights."""
        defaults = StoppingConfig()
        stopping = replace(
            recipe.stopping,
            early=True,
            restore_best=True,
            patience=defaults.patience,
            min_improvement_frac=defaults.min_improvement_frac,
        )
        return replace(recipe, stopping=stopping)

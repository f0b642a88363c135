"""The best weights of a training instead of the last ones."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import Monitor
from stepladder.config.recipe import Recipe, StoppingConfig
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against
from stepladder.rungs.formulas import predict_time


class EarlierStop(Remedy):
    """Stop training at the best validation, and restore those weights.

    Monitors the validation loss, or, for the built-in task, the accuracy, which may still rise
    while a model only becomes over-confident.

    Trades: results on the validation examples that chose the weights are biased; held-out ones
    judge.
    Source: Prechelt 1998, "Early Stopping, but When?"; Guo et al. 2017, "On Calibration of Modern
    Neural Networks", 3, arXiv:1706.04599 (the loss overfits while the error still falls).
    """

    name: ClassVar[str] = "earlier_stop"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if that is on, or if there are no validation examples."""
        if recipe.stopping.early and recipe.stopping.restore_best:
            return "already on"
        return "there are no validation examples" if profile.num_val == 0 else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale epochs to where this recipe's curve stops; without a curve, assume the same."""
        now, curve = profile.time, profile.curve
        stop = curve.epochs_to_stop if curve is not None else None
        epochs = now.epochs if stop is None or recipe.stopping.early else min(stop, now.epochs)
        share = epochs / now.epochs if now.epochs > 0 else 1.0
        after = replace(now, epochs=epochs, num_validations=now.num_validations * share)
        note = "the accuracy gain is measured, not predicted"
        return predict_time(self.name, profile, after, inputs={"epochs": epochs}, note=note)

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return stopping by the recipe's monitor, and for the built-in task by the other one."""
        own = recipe.stopping
        defaults = StoppingConfig()
        stopped = replace(own, early=True, restore_best=True)
        if not own.early:
            stopped = replace(
                stopped,
                min_improvement_frac=defaults.min_improvement_frac,
                allow_noise=defaults.allow_noise,
            )
        monitors = [own.monitor]
        if profile.is_built_in:
            monitors += [monitor for monitor in Monitor if monitor is not own.monitor]
        ways = [replace(stopped, monitor=monitor) for monitor in monitors]
        return tuple(replace(recipe, stopping=way) for way in ways)

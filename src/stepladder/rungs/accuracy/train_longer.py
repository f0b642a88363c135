"""More epochs, or more patience, for a training that ends too soon."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against
from stepladder.rungs.formulas import predict_time, schedule_epochs

_LONGER = 2.0
_MORE_PATIENT = 3


class TrainLonger(Remedy):
    """Train for twice the epochs if the schedule ends training, else with three times the patience.

    Trades: time, at the user's rate, for accuracy.
    Source: Google, "Deep Learning Tuning Playbook" (a training whose best checkpoint is its last
    one needs more steps); Hoffer et al. 2017, "Train longer, generalize better", arXiv:1705.08741.
    """

    name: ClassVar[str] = "train_longer"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if more epochs or patience would hardly be used."""
        if _is_ended_by_schedule(profile, recipe):
            return None
        if not recipe.stopping.early:
            epochs = schedule_epochs(profile.time, recipe)
            return f"training already ends before its {epochs:g} epochs are used"
        if _patience_epochs(profile, recipe) >= profile.time.epochs / 2:
            return "the patience is already as long as the training before it"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale epochs and validations; assume that all of the longer patience is used."""
        now = profile.time
        if _is_ended_by_schedule(profile, recipe):
            growth, note = _LONGER, "assumes that all epochs are used"
        else:
            more = _patience_epochs(profile, self.apply(profile, recipe))
            more -= _patience_epochs(profile, recipe)
            growth = 1 + max(0.0, more) / max(now.epochs, 1e-9)
            note = "assumes that the best epoch stays the same"
        after = replace(
            now, epochs=now.epochs * growth, num_validations=now.num_validations * growth
        )
        return predict_time(self.name, profile, after, inputs={"growth": growth}, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Extend the limit that ended training."""
        if not _is_ended_by_schedule(profile, recipe):
            every = _every_epochs(profile, recipe)
            least = math.ceil(profile.time.epochs / 2 / every)
            patience = max(_MORE_PATIENT * recipe.stopping.patience, least)
            return replace(recipe, stopping=replace(recipe.stopping, patience=patience))
        schedule, wanted = recipe.schedule, _LONGER * profile.time.epochs
        max_epochs = max(math.ceil(wanted), schedule.max_epochs)
        max_steps = schedule.max_steps
        if max_steps is not None:
            max_steps = max(math.ceil(wanted * profile.time.steps_per_epoch), 2 * max_steps)
        horizon = schedule.horizon_epochs
        if horizon is not None:
            horizon = math.ceil(_LONGER * horizon)
        longer = replace(
            schedule, max_epochs=max_epochs, max_steps=max_steps, horizon_epochs=horizon
        )
        return replace(recipe, schedule=longer)


def _is_ended_by_schedule(profile: Profile, recipe: Recipe) -> bool:
    """Return True if the schedule ended the measured training, within half an epoch."""
    return profile.time.epochs > schedule_epochs(profile.time, recipe) - 0.5


def _patience_epochs(profile: Profile, recipe: Recipe) -> float:
    return recipe.stopping.patience * _every_epochs(profile, recipe)


def _every_epochs(profile: Profile, recipe: Recipe) -> float:
    """Return the epochs between validations, a fraction if they are scheduled by steps."""
    steps = recipe.stopping.validate_every_steps
    if steps is None:
        return float(recipe.stopping.validate_every_epochs)
    return steps / max(profile.time.steps_per_epoch, 1e-9)

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
    """Train for twice the epochs where the schedule ends it, else with three times the patience.

    Trades: time, at the rate that the user sets, for accuracy.
    Source: Google, "Deep Learning Tuning Playbook" (a training whose best checkpoint is its last
    one wants more steps); Hoffer et al. 2017, "Train longer, generalize better", arXiv:1705.08741.
    """

    name: ClassVar[str] = "train_longer"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where more of either would hardly be used."""
        if _is_ended_by_schedule(profile, recipe):
            return None
        if not recipe.stopping.early:
            return f"of {schedule_epochs(profile.time, recipe):g} epochs, some are not used as is"
        if _patience_epochs(profile, recipe) >= profile.time.epochs / 2:
            return "patience is as long as the training before it already"
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Let epochs and validations grow; all of the longer patience is taken to be used."""
        now = profile.time
        if _is_ended_by_schedule(profile, recipe):
            growth, note = _LONGER, "all epochs are taken to be used"
        else:
            more = _patience_epochs(profile, self.apply(profile, recipe))
            more -= _patience_epochs(profile, recipe)
            growth = 1 + max(0.0, more) / max(now.epochs, 1e-9)
            note = "its best is taken to stay where it is"
        after = replace(
            now, epochs=now.epochs * growth, num_validations=now.num_validations * growth
        )
        return predict_time(self.name, profile, after, inputs={"growth": growth}, note=note)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Move what ended the training."""
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
    """Return True if the schedule ended the training that was measured, within half an epoch."""
    return profile.time.epochs > schedule_epochs(profile.time, recipe) - 0.5


def _patience_epochs(profile: Profile, recipe: Recipe) -> float:
    return recipe.stopping.patience * _every_epochs(profile, recipe)


def _every_epochs(profile: Profile, recipe: Recipe) -> float:
    """Return the epochs between validations, a part of one where they go by steps."""
    steps = recipe.stopping.validate_every_steps
    if steps is None:
        return float(recipe.stopping.validate_every_epochs)
    return steps / max(profile.time.steps_per_epoch, 1e-9)

"""Train a population instead of one model, and choose the best."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.config.choices import TrainMode
from stepladder.config.options import PopulationConfig
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import predict_time
from stepladder.training.output.wording import rough_time

_AT_ONCE: Final = 6.0
"""Measured: so many linear heads are trained at once in the time of one (`bench/results/
heads_at_once.md`: 5 to 9)."""


class Population(Rung):
    """Train many models whose settings change while they train, and choose the best.

    Predicted only: `stepladder population` trains it. Its gain is in accuracy or loss, and nobody
    can predict it; its cost is predicted.

    Trades: as many times the training as there are members, or a sixth of that if linear heads are
    trained on cached features; a population overfits the validation examples that choose.
    Source: Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846.
    """

    name: ClassVar[str] = "population"
    level: ClassVar[int] = 12
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    is_prediction_only: ClassVar[bool] = True

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if there is nothing by which members could be chosen, or it cannot train them."""
        reasons = {
            "no validation examples by which members could be chosen": profile.num_val == 0,
            "a population trains in one stage, and this recipe has two": (
                recipe.train is TrainMode.HEAD_THEN_ALL
            ),
            "each member trains on one device": not recipe.is_alone or recipe.device.replicas > 1,
            "members train on all examples, and the recipe takes a sample": (
                recipe.data.fraction < 1
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Multiply the time of steps and validations by the members that are trained in turn.

            loop' = loop x members / at once

        6 linear heads on cached features are trained at once, and one of any other model.
        """
        members, now = PopulationConfig.members, profile.time
        at_once = _AT_ONCE if recipe.features.cached and not recipe.head.hidden else 1.0
        times = members / at_once
        after = replace(now, step_s=times * now.step_s, validation_s=times * now.validation_s)
        return predict_time(
            self.name,
            profile,
            after,
            inputs={"members": float(members), "at_once": at_once},
            note=f"{members} members take {rough_time(after.total_s)}: stepladder population; its "
            "gain cannot be predicted",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Return the recipe unchanged: a population has many."""
        return recipe

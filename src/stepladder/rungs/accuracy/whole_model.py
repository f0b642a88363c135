"""The trunk learns as well."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy
from stepladder.rungs.contract import Against
from stepladder.rungs.formulas import predict_time, source_reading_s, with_one_time

_BACKWARD = 2.0
"""A backward pass through the trunk over a forward pass."""


class WholeModel(Remedy):
    """Let all weights learn instead of the head alone, at the rate that the recipe has for that.

    Features that were computed once change from then on, so each step computes them.

    Trades: time, and memory for activations; a small data set may be learnt by heart.
    Source: Yosinski et al. 2014, "How transferable are features in deep neural networks?",
    arXiv:1411.1792 (fine-tuned features generalise better than frozen ones).
    """

    name: ClassVar[str] = "whole_model"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where the trunk learns already, or there is none."""
        reasons = {
            "already on": recipe.train is TrainMode.ALL,
            "the model has no form head(trunk(x))": not profile.has_head,
            "no frozen trunk": not profile.is_trunk_frozen,
            "not measured: the trunk's forward pass": profile.trunk_s is None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Add a backward pass through the trunk to each step, as two forward passes.

        Where features were cached, also the forward pass and the reading; epochs are taken as
        equal.
        """
        now, batch = profile.time, recipe.batch.global_batch_size
        trunk_s = profile.trunk_s or 0.0
        passes, read_s = _BACKWARD, 0.0
        if recipe.features.cached:
            passes = _BACKWARD + 1
            read_s = source_reading_s(profile, recipe.loader, recipe.features)
        validation_s = now.validation_s
        if recipe.features.cached:
            validation_s += profile.num_val * (trunk_s + read_s)
        after = replace(
            with_one_time(now, features=0.0),
            step_s=now.step_s + batch * (passes * trunk_s + read_s),
            validation_s=validation_s,
        )
        return predict_time(
            self.name,
            profile,
            after,
            inputs={"trunk_s": trunk_s, "batch": float(batch)},
            note="a backward pass through the trunk is taken as two forward passes",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Let all learn, at `batch.lr_all`."""
        return replace(
            recipe,
            train=TrainMode.ALL,
            batch=replace(recipe.batch, lr=min(recipe.batch.lr, recipe.batch.lr_all)),
            features=replace(recipe.features, cached=False, cached_views=0),
            model=replace(recipe.model, fold_batchnorm=False),
        )

"""Train the trunk as well."""

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
"""Time of a backward pass through the trunk over that of a forward pass."""


class WholeModel(Remedy):
    """Train all weights instead of the head alone, at the recipe's learning rate for that.

    The trunk's features then change, so that they cannot be cached any more.

    Trades: time, and memory for activations; a small data set may be memorised.
    Source: Yosinski et al. 2014, "How transferable are features in deep neural networks?",
    arXiv:1411.1792 (fine-tuned features generalise better than frozen ones).
    """

    name: ClassVar[str] = "whole_model"
    level: ClassVar[int] = 7
    against: ClassVar[Against | None] = Against.TRAINING

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if the trunk is trained already, or the model has no trunk."""
        reasons = {
            "already on": recipe.train is TrainMode.ALL,
            "the model is not of the form head(trunk(x))": not profile.has_head,
            "the trunk is not frozen": not profile.is_trunk_frozen,
            "not measured: the trunk's forward pass": profile.trunk_s is None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Add a backward pass through the trunk to each step, as two forward passes.

        With cached features, also add the forward pass and the reading; assume the same number of
        epochs.
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
            note="assumes that a backward pass takes as long as two forward passes",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Train all weights, at `batch.lr_all`."""
        return replace(
            recipe,
            train=TrainMode.ALL,
            batch=replace(recipe.batch, lr=min(recipe.batch.lr, recipe.batch.lr_all)),
            features=replace(recipe.features, cached=False, cached_views=0),
            model=replace(recipe.model, fold_batchnorm=False),
        )

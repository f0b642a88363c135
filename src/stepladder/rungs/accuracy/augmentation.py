"""Augmentation of the training pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import AugmentConfig, Recipe
from stepladder.records.ladder import Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.accuracy.remedy import Remedy, predict_as_long
from stepladder.rungs.contract import Against
from stepladder.rungs.formulas import (
    num_kept,
    num_through_trunk,
    predict_time,
    source_reading_s,
    through_trunk_s,
    with_one_time,
)

_CROP = 0.5
_RANDAUGMENT_OPS = 2
_VIEWS = 4


class Augmentation(Remedy):
    """Augment training pictures: random crops and flips, or RandAugment in addition.

    A third variant only crops, as a flipped picture may belong to another class. With a frozen
    trunk, features of four random views of each picture are cached instead of new views per epoch.

    Trades: epochs, as there is more to learn; with a frozen trunk, time and disk for its views.
    Source: Cubuk et al. 2020, "RandAugment", arXiv:1909.13719; Krizhevsky et al. 2012, "ImageNet
    Classification with Deep Convolutional Neural Networks", 4.1.
    """

    name: ClassVar[str] = "augmentation"
    level: ClassVar[int] = 8
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if augmentation is on, or if the task does its own."""
        reasons = {
            "the task does its own augmentation": not profile.is_built_in,
            "already on": recipe.augment.crop < 1 or recipe.augment.randaugment_ops > 0,
            "not measured: the trunk's forward pass": _has_views(profile)
            and profile.trunk_s is None,
            "not measured: a step of the head alone": _has_views(profile)
            and profile.head_step_s is None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Add the pass of all views through a frozen trunk; else assume the same time."""
        if not _has_views(profile):
            return predict_as_long(
                self.name, profile, note="the cost of augmentation is not included"
            )
        profile, after = self._with_views(profile, recipe)
        now = profile.time
        read_s = source_reading_s(profile, recipe.loader, recipe.features)
        pass_s = through_trunk_s(
            profile, after.features, batch_size=after.batch.global_batch_size, read_s=read_s
        )
        validation_s = profile.head_validation_s
        time = replace(
            with_one_time(now, features=pass_s, load=0.0),
            step_s=profile.head_step_s or now.step_s,
            validation_s=now.validation_s if validation_s is None else validation_s,
        )
        return predict_time(
            self.name,
            profile,
            time,
            inputs={"num_through_trunk": float(num_through_trunk(profile, after.features))},
            note=f"{_VIEWS} fixed views per example; assumes the same number of epochs",
        )

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:
        """Return the bytes of the features of all views."""
        if not _has_views(profile):
            return 0
        profile, after = self._with_views(profile, recipe)
        return (profile.feature_bytes or 0) * num_kept(profile, after.features)

    def variants(self, profile: Profile, recipe: Recipe) -> tuple[Recipe, ...]:
        """Return crops with flips, RandAugment in addition, and crops alone."""
        own = recipe.augment
        ways: tuple[AugmentConfig, ...] = (
            replace(own, crop=_CROP, flip=True),
            replace(own, crop=_CROP, flip=True, randaugment_ops=_RANDAUGMENT_OPS),
            replace(own, crop=_CROP),
        )
        features = recipe.features
        if _has_views(profile):
            features = replace(features, cached=True, cached_views=_VIEWS)
        return tuple(dict.fromkeys(replace(recipe, augment=way, features=features) for way in ways))

    def _with_views(self, profile: Profile, recipe: Recipe) -> tuple[Profile, Recipe]:
        return replace(profile, is_random_before_head=True), self.apply(profile, recipe)


def _has_views(profile: Profile) -> bool:
    """Return True if features of random views can be cached."""
    return profile.has_head and profile.is_trunk_frozen

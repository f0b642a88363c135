"""Cache the features of a frozen trunk."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    num_kept,
    num_through_trunk,
    predict_time,
    source_reading_s,
    through_trunk_s,
    with_one_time,
)


class CachedFeatures(Rung):
    """Compute the features of the frozen trunk once, and train the head on them.

    With augmentation, a fixed number of random views of each training example is cached.

    Trades: disk for the features; with views, new random views in each epoch for a few fixed ones.
    Source: Donahue et al. 2014, "DeCAF", arXiv:1310.1531.
    """

    name: ClassVar[str] = "cached_features"
    level: ClassVar[int] = 5

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if features would change during training, or cannot be cached."""
        views = recipe.features.cached_views
        reasons = {
            "already on": recipe.features.cached,
            "the model is not of the form head(trunk(x))": not profile.has_head,
            "the trunk is trained, so its features change": not profile.is_trunk_frozen,
            "the inputs of the head are random; --features.cached-views K caches K views of each "
            "example": profile.is_random_before_head and views == 0,
            "not measured: the trunk's forward pass": profile.trunk_s is None,
            "not measured: a step of the head alone": profile.head_step_s is None,
        }
        refusal = next((reason for reason, holds in reasons.items() if holds), None)
        needed = self.disk_bytes(profile, recipe)
        if refusal is None and needed > profile.free_disk_bytes:
            have = profile.free_disk_bytes
            return f"features need {needed / 1e9:.1f} GB of disk; {have / 1e9:.1f} GB are free"
        return refusal

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict one pass of the trunk instead of one per epoch, then training the head alone.

            gain = E (t_load + t_trunk + t_head) / [(t_load + V t_trunk) + E t_head]

        for each example over E epochs, with V views of it, from the measured seconds of steps and
        validations; see `through_trunk_s`. Pictures are no longer loaded into memory: the pass
        reads each once.
        """
        now = profile.time
        load_s = source_reading_s(profile, recipe.loader, recipe.features)
        pass_s = through_trunk_s(
            profile, recipe.features, batch_size=recipe.batch.global_batch_size, read_s=load_s
        )
        head_step_s = profile.head_step_s or 0.0
        validation_s = profile.head_validation_s
        after = replace(
            with_one_time(now, features=pass_s, load=0.0),  # the pass reads what it needs
            step_s=head_step_s,
            validation_s=now.validation_s if validation_s is None else validation_s,
        )
        load_once_s = now.one_time_s.get("load", 0.0)
        saved_s = now.total_s - load_once_s - (after.total_s - pass_s)
        epoch_saves_s = saved_s / max(now.epochs, 1e-9)
        inputs = {
            "trunk_s": profile.trunk_s or 0.0,
            "load_s": load_s,
            "head_step_s": head_step_s,
            "num_through_trunk": float(num_through_trunk(profile, recipe.features)),
        }
        if epoch_saves_s > 0:
            inputs["break_even_epochs"] = max(0.0, pass_s - load_once_s) / epoch_saves_s
        views = recipe.features.cached_views
        note = f"{views} fixed views of each example instead of new ones in each epoch"
        is_random = profile.is_random_before_head
        return predict_time(
            self.name, profile, after, inputs=inputs, note=note if is_random else ""
        )

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:
        """Return the bytes of all features."""
        return (profile.feature_bytes or 0) * num_kept(profile, recipe.features)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on cached features."""
        return replace(recipe, features=replace(recipe.features, cached=True))

    def exactness_of(self, recipe: Recipe) -> Exactness:
        """Return rounding without views; with views the head is trained on other examples."""
        return Exactness.STATISTICAL if recipe.features.cached_views else self.exactness

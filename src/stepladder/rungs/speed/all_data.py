"""Train on all examples instead of a sample."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Against, Rung
from stepladder.rungs.formulas import (
    all_data_bytes,
    host_bytes,
    is_held_in_memory,
    num_kept,
    predict_time,
    with_one_time,
)
from stepladder.rungs.reading_time import (
    about_store,
    download_s,
    from_store_s,
    no_faster_than,
    streamed,
)


class AllData(Rung):
    """Train on all examples instead of a sample.

    If pictures are held in memory and all of them do not fit, they are read in each epoch instead.
    Both changes are kept or dropped together: reading alone would only cost time.

    Trades: time, at the user's rate, for accuracy.
    Source: Hestness et al. 2017, "Deep Learning Scaling is Predictable, Empirically",
    arXiv:1712.00409; step 4 of Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy
    Steps".
    """

    name: ClassVar[str] = "all_data"
    level: ClassVar[int] = 8
    aim: ClassVar[Aim] = Aim.ACCURACY
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL
    against: ClassVar[Against | None] = Against.GAP

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:  # noqa: ARG002
        """Refuse if all examples are used."""
        in_use = recipe.data.fraction == 1
        return "already on: more data would have to be collected" if in_use else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Scale an epoch and one-time work with the examples; assume the same number of epochs."""
        now, growth = profile.time, 1 / recipe.data.fraction
        note = f"{growth:.3g} times the examples; assumes the same number of epochs"
        num_now = profile.num_train + profile.num_val
        num_after = profile.num_train * growth + profile.num_val
        store_s = from_store_s(profile, recipe, num_examples=num_after)
        if _must_stream(profile, recipe):
            now = streamed(profile, recipe, growth=growth)
            about = about_store(profile, recipe, num_examples=num_after)
            note += f"; read in each epoch, as they do not fit into memory: {about}"
        elif not recipe.features.cached and not is_held_in_memory(profile, recipe):
            more_frac = (num_after - num_now) / max(num_after, 1.0)
            more_s = more_frac * download_s(profile, recipe, num_examples=num_after)
            now = no_faster_than(now, profile, recipe, example_s=store_s)
            now = with_one_time(now, download=more_s)
        per_example = num_after / num_now if num_now else 1.0
        with_data = {
            name: seconds * (per_example if name in ("features", "load", "store") else 1)
            for name, seconds in now.one_time_s.items()
        }
        after = replace(
            with_one_time(now, **with_data), steps_per_epoch=now.steps_per_epoch * growth
        )
        return predict_time(
            self.name,
            profile,
            after,
            inputs={
                "fraction": recipe.data.fraction,
                "num_train": float(profile.num_train),
                "store_s": store_s,
            },
            note=note,
        )

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:
        """Return the bytes of cached features of all examples; those of the sample are separate."""
        if not recipe.features.cached:
            return 0
        whole = replace(profile, num_train=round(profile.num_train / recipe.data.fraction))
        return (profile.feature_bytes or 0) * num_kept(whole, recipe.features)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        """Use all examples, and read them in each epoch if they do not fit into memory."""
        where = Where.STREAM if _must_stream(profile, recipe) else recipe.data.where
        return replace(recipe, data=replace(recipe.data, fraction=1.0, where=where))


def _must_stream(profile: Profile, recipe: Recipe) -> bool:
    """Return True if pictures are held in memory, but all of them do not fit."""
    is_held = recipe.data.where is Where.MEMORY and not recipe.features.cached
    return is_held and all_data_bytes(profile, recipe) > host_bytes(profile)

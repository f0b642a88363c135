"""Pictures read each epoch instead of held in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import all_data_bytes, predict_time, with_one_time


class Streaming(Rung):
    """Read the pictures from disk each epoch, where memory does not hold all of them.

    Trades: reading in every epoch, for memory that does not grow with the data.
    Source: step 4 of Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy Steps".
    """

    name: ClassVar[str] = "streaming"
    level: ClassVar[int] = 8
    aim: ClassVar[Aim] = Aim.MEMORY
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where memory does not stand in the way."""
        if recipe.data.where is Where.STREAM:
            return "already on"
        if profile.store_encoding is None:
            return "the data is no store of pictures"
        if recipe.data.where is Where.AUTO:
            return "auto holds pictures in memory only where they fit"
        fits = all_data_bytes(profile, recipe) <= profile.free_memory_bytes
        return "memory holds all of the pictures" if fits else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Keep only the batches in flight; an epoch cannot be faster than from memory."""
        held = all_data_bytes(profile, recipe)
        batches = recipe.loader.prefetch_batches + 2
        in_flight = batches * recipe.batch.global_batch_size * profile.example_bytes
        return predict_time(
            self.name,
            profile,
            with_one_time(profile.time, load=0.0),
            inputs={"held_bytes": float(held), "in_flight_bytes": float(in_flight)},
            memory_frac=min(1.0, in_flight / held) if held else None,
            note="what the disk adds to each epoch is not counted",
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Read each epoch."""
        return replace(recipe, data=replace(recipe.data, where=Where.STREAM))

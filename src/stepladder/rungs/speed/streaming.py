"""Read pictures in each epoch instead of holding them in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import Where
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Aim, Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import all_data_bytes, host_bytes, predict_time
from stepladder.rungs.reading_time import about_store, fetch_and_decode_s, from_store_s, streamed


class Streaming(Rung):
    """Read the pictures from disk in each epoch, if those of the job do not fit into memory.

    If only the sample fits, `all_data` includes this change.

    Trades: reading in every epoch, for memory use that does not grow with the data.
    Source: step 4 of Databricks 2019, "How (Not) To Scale Deep Learning in 6 Easy Steps".
    """

    name: ClassVar[str] = "streaming"
    level: ClassVar[int] = 8
    aim: ClassVar[Aim] = Aim.MEMORY
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if memory is not the limit."""
        where, free = recipe.data.where, host_bytes(profile)
        holds_all = all_data_bytes(profile, recipe) <= free
        sample = "the sample fits into memory; all_data streams if all data does not"
        reasons = {
            "already on": where is Where.STREAM,
            "the data is not a store of pictures": profile.store_encoding is None,
            "data.where auto holds pictures in memory only if they fit": where is Where.AUTO,
            "each picture is read only once, for its features": recipe.features.cached,
            "all pictures fit into memory": holds_all,
            sample: _held_bytes(profile) <= free,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict memory for the batches in flight, and reading in every step and validation."""
        held = _held_bytes(profile)
        batches = recipe.loader.prefetch_batches + 2
        in_flight = batches * recipe.batch.global_batch_size * profile.example_bytes
        num_examples = profile.num_train + profile.num_val
        fetch_s, decode_s = fetch_and_decode_s(profile)
        return predict_time(
            self.name,
            profile,
            streamed(profile, recipe),
            inputs={
                "held_bytes": float(held),
                "in_flight_bytes": float(in_flight),
                "loader_fetch_s": fetch_s,
                "loader_decode_s": decode_s,
                "store_s": from_store_s(profile, recipe, num_examples=num_examples),
            },
            memory_frac=min(1.0, in_flight / held) if held else None,
            note=about_store(profile, recipe, num_examples=num_examples),
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Read the pictures in each epoch."""
        return replace(recipe, data=replace(recipe.data, where=Where.STREAM))


def _held_bytes(profile: Profile) -> int:
    """Return the memory of the decoded pictures that the job uses, those of its sample."""
    return profile.example_bytes * (profile.num_train + profile.num_val)

"""Shuffle examples within windows of files, if single examples are expensive to read."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.choices import OrderMode
from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import is_held_in_memory, predict_time
from stepladder.rungs.reading_time import about_store, fetch_and_decode_s, from_store_s


class WindowedOrder(Rung):
    """Read a remote or slow store file by file, shuffling the files and rows of a few files.

    A global shuffle reads single examples from all files: from an object store, each downloads its
    whole file unless the cache holds all of them; on a hard disk, each needs a seek.

    Trades: examples of the same window are in a batch together more often than by chance.
    Source: Nguyen et al. 2022, "Why Globally Re-shuffle? Revisiting Data Shuffling in Large Scale
    Deep Learning", IPDPS (a partial exchange, tuned, keeps the accuracy of a global one).
    """

    name: ClassVar[str] = "windowed_order"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.STATISTICAL

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if single examples are cheap, not shuffled globally, or in memory."""
        reasons = {
            "the data is not a store": profile.is_store_near is None,
            "already on: data.order is not global": recipe.data.order is not OrderMode.GLOBAL,
            "reading single examples from this store is cheap": (profile.is_store_near is True),
            "each picture is read only once, for its features": recipe.features.cached,
            "each picture is read only once, into memory": is_held_in_memory(profile, recipe),
            "not measured: a step on batches already in memory": profile.replay_host_s is None,
            "not measured: the rate of reading files": not _rate(profile),
            "the whole store fits into memory or the cache": _store_s(profile, recipe) == 0,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict reading every file once per epoch, at the rate of the link or the disk.

            step = max(batch bytes / rate, compute + batch decode / cores)

        Decoding in the second term counts only on a CPU, where it shares the cores with the step.
        """
        now, batch = profile.time, recipe.batch.global_batch_size
        store_s = _store_s(profile, recipe)
        _, decode_s = fetch_and_decode_s(profile)
        ready_s = profile.replay_host_s or 0.0
        if profile.device == "cpu":
            ready_s += batch * decode_s / max(1, profile.num_cores)
        step_s = min(now.step_s, max(batch * store_s, ready_s))
        return predict_time(
            self.name,
            profile,
            replace(now, step_s=step_s),
            inputs={
                "stored_bytes": profile.stored_bytes or 0.0,
                "bytes_per_s": _rate(profile),
                "store_s": store_s,
                "replay_host_s": profile.replay_host_s or 0.0,
                "loader_decode_s": decode_s,
            },
            note=about_store(profile, recipe, num_examples=_num_read(profile)),
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on the windowed order."""
        return replace(recipe, data=replace(recipe.data, order=OrderMode.WINDOWED))


def _rate(profile: Profile) -> float:
    return profile.link_bytes_per_s or profile.disk_bytes_per_s or 0.0


def _num_read(profile: Profile) -> int:
    return profile.num_train + profile.num_val


def _store_s(profile: Profile, recipe: Recipe) -> float:
    return from_store_s(profile, recipe, num_examples=_num_read(profile))

"""Decode a JPEG store once into a store of pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.config.recipe import Recipe
from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Profile
from stepladder.rungs.contract import Rung
from stepladder.rungs.formulas import (
    all_data_bytes,
    is_held_in_memory,
    loader_threads,
    predict_time,
    scale_loading,
    why_no_data_advice,
    with_one_time,
)
from stepladder.rungs.reading_time import (
    about_disk,
    fetch_and_decode_s,
    from_disk_s,
    from_store_s,
    no_faster_than,
)

_NUM_COPIES = 2
"""A picture is copied out of the page cache, and into its batch."""


class PixelStore(Rung):
    """Decode each picture once, and then read pixels.

    Trades: about ten times the disk space of JPEGs, for no decoding; slower on a slow disk.
    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training",
    arXiv:2007.06775 (preparation stalls).
    """

    name: ClassVar[str] = "pixel_store"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse if pictures are decoded only once anyway, or the disk is too small."""
        reasons = {
            "already on": recipe.data.decode_once,
            "the data is not a JPEG store": profile.store_encoding != "jpeg",
            "the task reads its pictures itself": not profile.is_built_in,
            "each picture is already decoded only once, for its features": recipe.features.cached,
            "each picture is already decoded only once, into memory": (
                is_held_in_memory(profile, recipe)
            ),
            "not measured: the cost of reading": profile.loader_cpu_s is None,
            "not measured: memory bandwidth": not profile.bandwidth_bytes_per_s,
        }
        refusal = next((reason for reason, holds in reasons.items() if holds), None)
        needed = self.disk_bytes(profile, recipe)
        if refusal is None and needed > profile.free_disk_bytes:
            have = profile.free_disk_bytes
            return f"pixels need {needed / 1e9:.1f} GB of disk; {have / 1e9:.1f} GB are free"
        return refusal or why_no_data_advice(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Predict reading as a fetch and two copies of the pixels, after one pass that decodes all.

        The fetch is the measured one of a JPEG, plus copies of the additional bytes; decoding is
        not needed. Pixels that memory cannot cache are read from disk in every epoch. The pass is
        limited by the rate of disk or link for the JPEGs.
        """
        fetch_s, decode_s = fetch_and_decode_s(profile)
        cpu_s, bandwidth = fetch_s + decode_s, profile.bandwidth_bytes_per_s or 1.0
        copy_s = _NUM_COPIES * profile.example_bytes / bandwidth
        copied_s = _NUM_COPIES * (profile.stored_bytes or 0.0) / bandwidth if fetch_s else 0.0
        read_s = min(fetch_s + max(0.0, copy_s - copied_s), cpu_s)
        threads = loader_threads(profile, recipe.loader)
        num_examples = profile.num_train + profile.num_val
        num_decoded = profile.num_train / recipe.data.fraction + profile.num_val + profile.num_test
        from_s = from_store_s(profile, recipe, num_examples=num_decoded)
        if profile.link_bytes_per_s:
            from_s = (profile.stored_bytes or 0.0) / profile.link_bytes_per_s
        store_s = num_decoded * (max(cpu_s / max(1, profile.num_cores), from_s) + copy_s)
        disk_s = from_disk_s(
            profile, example_bytes=profile.example_bytes, num_examples=num_examples
        )
        after = scale_loading(profile, recipe, threads=threads, cpu_s=cpu_s, cpu_s_after=read_s)
        after = no_faster_than(after, profile, recipe, example_s=disk_s)
        note = "pixels are read from the page cache"
        if disk_s > 0 or not profile.disk_bytes_per_s:
            note += f"; {about_disk(profile)}"
        return predict_time(
            self.name,
            profile,
            with_one_time(after, store=store_s),
            inputs={
                "loader_fetch_s": fetch_s,
                "loader_decode_s": decode_s,
                "read_s": read_s,
                "disk_s": disk_s,
                "store_s": store_s,
            },
            note=note,
        )

    def disk_bytes(self, profile: Profile, recipe: Recipe) -> int:
        """Return the bytes of all decoded pictures, including test and any outside of a sample."""
        return int(all_data_bytes(profile, recipe) + profile.example_bytes * profile.num_test)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Turn on the store of pixels."""
        return replace(recipe, data=replace(recipe.data, decode_once=True))

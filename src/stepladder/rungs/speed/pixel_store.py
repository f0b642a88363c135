"""A JPEG store decoded once into a store of pixels."""

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
"""A stored picture is copied out of the page cache, and into its batch."""


class PixelStore(Rung):
    """Decode each picture once, and read pixels from then on.

    Trades: disk, some ten times that of JPEGs, for no decoding; a slow disk may lose by it.
    Source: Mohan et al. 2021, "Analyzing and Mitigating Data Stalls in DNN Training",
    arXiv:2007.06775 (preparation stalls).
    """

    name: ClassVar[str] = "pixel_store"
    level: ClassVar[int] = 8
    exactness: ClassVar[Exactness] = Exactness.BITWISE

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        """Refuse where pictures are decoded once anyway, or there is no room."""
        reasons = {
            "already on": recipe.data.decode_once,
            "the data is no store of JPEGs": profile.store_encoding != "jpeg",
            "the task reads its pictures itself": not profile.is_built_in,
            "each picture is decoded once already, for its features": recipe.features.cached,
            "each picture is decoded once already, into memory": is_held_in_memory(profile, recipe),
            "not measured: what reading costs": profile.loader_cpu_s is None,
            "not measured: the memory's bandwidth": not profile.bandwidth_bytes_per_s,
        }
        refusal = next((reason for reason, holds in reasons.items() if holds), None)
        needed = self.disk_bytes(profile, recipe)
        if refusal is None and needed > profile.free_disk_bytes:
            have = profile.free_disk_bytes
            return f"pixels take {needed / 1e9:.1f} GB of disk, and {have / 1e9:.1f} GB are free"
        return refusal or why_no_data_advice(profile, recipe)

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        """Let reading take a fetch and two copies of the pixels, after one pass that decodes all.

        The fetch is that of a JPEG as it was measured, with copies of the bytes that pixels have
        more; decoding goes away. What memory does not keep of the pixels comes from the disk in
        every epoch. The pass is no faster than disk or link give the JPEGs.
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
        note = "pixels read from the page cache"
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
        """Return the bytes of all decoded pictures, of test and what a sample leaves out included."""
        return int(all_data_bytes(profile, recipe) + profile.example_bytes * profile.num_test)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:  # noqa: ARG002
        """Ask for a store of pixels."""
        return replace(recipe, data=replace(recipe.data, decode_once=True))

"""Where each number of a profile comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from stepladder.records.profile import Profile, Provenance

_READ = (
    "num_train",
    "num_val",
    "num_test",
    "is_built_in",
    "has_head",
    "is_trunk_frozen",
    "is_random_before_head",
    "default_threads",
    "is_pretrained",
    "num_conv2d",
    "num_batchnorm",
    "num_norms",
    "num_blocks",
    "weight_bytes",
    "trainable_bytes",
    "example_bytes",
    "feature_bytes",
    "store_encoding",
    "source_pixels",
    "stored_bytes",
    "is_store_near",
    "device",
    "device_name",
    "num_cores",
    "has_cuda",
    "has_bf16",
    "has_compiler",
    "free_memory_bytes",
    "free_host_bytes",
    "free_disk_bytes",
    "larger_trunks",
)
_MODELLED = ("time", "step_fixed_s", "step_per_example_s", "mfu", "noise_scale")
_REPLAYED = ("head_step_s", "head_validation_s", "op_replays")
_SILENT = (  # words; and the curve says it itself
    "provenance",
    "no_advice_because",
    "noise_scale_unknown_because",
    "curve",
)


def provenance_of(profile: Profile) -> Mapping[str, Provenance]:
    """Say of each number that is there whether it was measured, read, assumed or computed."""
    found: dict[str, Provenance] = {}
    for item in fields(profile):
        value = getattr(profile, item.name)
        if item.name in _SILENT or value is None or value in ({}, ()):
            continue
        found[item.name] = _provenance(item.name)
    if not profile.is_built_in:
        found["is_pretrained"] = Provenance.ASSUMED
    return found


def _provenance(name: str) -> Provenance:
    if name in _READ:
        return Provenance.READ
    if name in _MODELLED:
        return Provenance.MODELLED
    return Provenance.REPLAYED if name in _REPLAYED else Provenance.MEASURED

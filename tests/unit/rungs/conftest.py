"""A profile whose numbers are easy to verify, and changes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from stepladder.records.profile import Profile, TrainingTime

TIME = TrainingTime(
    epochs=10.0, steps_per_epoch=100.0, step_s=1.0, num_validations=10.0, validation_s=20.0
)
"""1,000 steps of 1 s and ten validations of 20 s: 1,200 s."""
OF_TIME = {field.name for field in fields(TrainingTime)}


@pytest.fixture(name="make_profile")
def make_profile_of(profile_of: Callable[..., Profile]) -> Callable[..., Profile]:
    """Return the profile with some fields changed, including those of its `time`."""
    profile = profile_of(
        TIME,
        num_train=1600,
        num_val=200,
        is_built_in=True,
        is_pretrained=True,
        num_conv2d=50,
        conv_frac=0.99,
        num_batchnorm=50,
        weight_bytes=10**7,
        trainable_bytes=10**5,
        example_bytes=3 * 200 * 200,
        store_encoding="pixels",
        num_cores=2,
        has_bf16=True,
        has_compiler=True,
        free_memory_bytes=10**10,
        free_disk_bytes=10**10,
    )

    def make(**changes: Any) -> Profile:
        of_time = {name: changes.pop(name) for name in OF_TIME & changes.keys()}
        return replace(profile, time=replace(TIME, **of_time), **changes)

    return make

"""Measurements that the profile of a changed recipe can reuse."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.choices import MemoryFormat, Precision
from stepladder.config.recipe import BatchConfig, DeviceConfig, OptimizerConfig, Recipe
from stepladder.measuring.profile import ProfileMemory
from stepladder.measuring.profile_memory import memory_key


def test_the_noise_scale_outlives_how_gradients_are_computed_and_applied() -> None:
    recipe = Recipe()
    device = DeviceConfig(memory_format=MemoryFormat.CHANNELS_LAST, precision=Precision.BF16)
    folded = replace(recipe.model, fold_batchnorm=True)
    fused = OptimizerConfig(fused=True)
    faster = replace(recipe, device=device, model=folded, optimizer=fused)
    assert memory_key("noise", faster) == memory_key("noise", recipe)
    assert memory_key("sweep", faster) != memory_key("sweep", recipe)
    larger = replace(recipe, batch=BatchConfig(global_batch_size=64))
    assert memory_key("noise", larger) != memory_key("noise", recipe)


def test_what_is_known_is_not_measured_again() -> None:
    known, recipe = ProfileMemory(), Recipe()
    values = iter((1.0, 2.0))
    assert known.once(memory_key("noise", recipe), lambda: next(values)) == 1.0
    assert known.once(memory_key("noise", replace(recipe, seed=9)), lambda: next(values)) == 1.0
    assert known.knows(memory_key("noise", recipe))

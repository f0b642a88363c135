"""What of a recipe influences learning, and what only its speed."""

from __future__ import annotations

from dataclasses import replace

import torch

from stepladder.config.choices import MemoryFormat
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    LoaderConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.optim.table import spec_of


def learning_key(recipe: Recipe) -> Recipe:
    """Give the recipe with everything at its default that does not influence what is learnt.

    Equal keys learn the same, to rounding: how data is read, where it lies, layout, compiling,
    threads, folding and fused kernels do not count, nor does keeping features without random
    views. The number format does, and so does decoding at a part of the size: other pixels.
    """
    data, defaults = recipe.data, Recipe()
    features = recipe.features
    if not (features.cached and features.cached_views):
        features = defaults.features
    return replace(
        recipe,
        deterministic=defaults.deterministic,
        data=replace(
            defaults.data,
            store=data.store,
            fraction=data.fraction,
            seed=data.seed,
            sample=data.sample,
            order=data.order,
            window_rows=data.window_rows,
        ),
        loader=LoaderConfig(scaled_decode=recipe.loader.scaled_decode),
        model=replace(recipe.model, fold_batchnorm=False),
        features=features,
        optimizer=replace(recipe.optimizer, fused=False),
        device=DeviceConfig(precision=recipe.device.precision),
    )


def execution_key(recipe: Recipe) -> Recipe:
    """Give the recipe with everything at its default that does not influence a step's speed.

    Equal keys take the same time for a step and a validation: they may differ in how long training
    goes on and in numbers that steps are taken with, such as the learning rate.
    """
    rates = BatchConfig()
    return replace(
        recipe,
        schedule=ScheduleConfig(),
        stopping=StoppingConfig(),
        batch=replace(
            rates,
            global_batch_size=recipe.batch.global_batch_size,
            micro_batch_size=recipe.batch.micro_batch_size,
        ),
    )


def model_key(recipe: Recipe) -> Recipe:
    """Give the recipe with everything at its default that comes after the model is built."""
    return replace(
        learning_key(recipe),
        batch=BatchConfig(),
        optimizer=OptimizerConfig(),
        schedule=ScheduleConfig(),
        stopping=StoppingConfig(),
    )


def instrument_recipe(recipe: Recipe) -> Recipe:
    """Give the recipe under which features are computed for replay: the same, in a fast layout."""
    is_cached = recipe.features.cached
    device = replace(
        DeviceConfig(precision=recipe.device.precision, kind=recipe.device.kind),
        threads=recipe.device.threads,
        memory_format=MemoryFormat.CHANNELS_LAST,
    )
    return replace(
        recipe,
        model=replace(recipe.model, fold_batchnorm=False),
        features=replace(
            recipe.features, cached_views=recipe.features.cached_views if is_cached else 0
        ),
        device=device,
    )


def replay_recipe(recipe: Recipe, device: torch.device) -> Recipe:
    """Give the recipe by which a head learns from features: nothing of the trunk is left in it.

    Updates are fused where they can be: what is learnt is the same to rounding.
    """
    fused = spec_of(recipe.optimizer.name).can_fuse(device.type)
    return replace(
        recipe,
        optimizer=replace(recipe.optimizer, fused=fused),
        model=replace(recipe.model, fold_batchnorm=False),
        features=Recipe().features,
        device=replace(recipe.device, compile=False, gradient_checkpointing=False),
    )

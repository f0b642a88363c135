"""Decide the options that are `auto`: what is faster and changes nothing but rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from stepladder.config.choices import Auto, MemoryFormat
from stepladder.config.recipe import Recipe
from stepladder.machine import disk_free_bytes
from stepladder.machine.filesystem import nearest_folder
from stepladder.optim.table import spec_of
from stepladder.task.contract import Task
from stepladder.training.features.feature_pass import TrunkPass
from stepladder.training.features.feature_rules import why_no_features
from stepladder.training.setup.build import Sources, make_model, make_trunk_pass, set_execution
from stepladder.training.stage import stages_of

_DISK_FRAC: Final = 0.5  # of the free space that features may take without being asked for
SWITCH_OFF: Final = "--no-auto switches this off"


def as_before(recipe: Recipe, earlier: Recipe) -> Recipe:
    """Use an earlier attempt's choice for each option that is `auto`."""
    features, optimizer, device = recipe.features, recipe.optimizer, recipe.device
    if isinstance(features.cached, Auto):
        features = replace(features, cached=earlier.features.cached)
    if isinstance(optimizer.fused, Auto):
        optimizer = replace(optimizer, fused=earlier.optimizer.fused)
    if device.memory_format is MemoryFormat.AUTO:
        device = replace(device, memory_format=earlier.device.memory_format)
    return replace(recipe, features=features, optimizer=optimizer, device=device)


def make_settled_model(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, folder: Path
) -> tuple[Recipe, nn.Module, str]:
    """Build the model, and decide the options that are `auto`.

    Args:
        folder: of the features; may not exist yet.

    Returns:
        The recipe without `auto`, its model, and what was chosen as a sentence; empty: nothing.

    Raises:
        UsageError, ResourceError: as `make_model`.
    """
    model = make_model(recipe, task, device)
    chosen: list[str] = []
    if recipe.device.memory_format is MemoryFormat.AUTO:
        is_wanted = recipe.auto and _has_convolutions(model)
        layout = MemoryFormat.CHANNELS_LAST if is_wanted else MemoryFormat.CONTIGUOUS
        recipe = replace(recipe, device=replace(recipe.device, memory_format=layout))
        if is_wanted:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            set_execution(recipe, stages_of(recipe.train, recipe.batch)[0], task, model)
            chosen.append("the channels-last layout")
    if isinstance(recipe.optimizer.fused, Auto):
        is_wanted = recipe.auto and spec_of(recipe.optimizer.name).can_fuse(device.type)
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, fused=is_wanted))
        if is_wanted:
            chosen.append("the fused optimizer")
    if isinstance(recipe.features.cached, Auto):
        way = make_trunk_pass(recipe, task, model, device=device)
        is_wanted = recipe.auto and _can_cache(recipe, way, sources, folder=folder)
        recipe = replace(recipe, features=replace(recipe.features, cached=is_wanted))
        if is_wanted:
            chosen.insert(
                0,
                "cached features (the trunk is frozen, and nothing random comes before the head)",
            )
    return recipe, model, f"using {_joined(chosen)}; {SWITCH_OFF}" if chosen else ""


def settled(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, folder: Path
) -> Recipe:
    """Return the recipe without `auto`; a model is built only if an option is `auto`."""
    options = (recipe.features.cached, recipe.optimizer.fused, recipe.device.memory_format)
    if not any(value in (Auto.AUTO, MemoryFormat.AUTO) for value in options):
        return recipe
    return make_settled_model(recipe, task, sources, device=device, folder=folder)[0]


def _has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def _can_cache(recipe: Recipe, way: TrunkPass, sources: Sources, *, folder: Path) -> bool:
    """Return whether features can be cached exactly, and take at most half of the free disk."""
    if recipe.features.cached_views:
        return False  # fixed views are other examples: only if they are asked for
    if why_no_features(way, recipe.train, sources.train) is not None:
        return False
    return _features_bytes(way, sources) <= _DISK_FRAC * disk_free_bytes(nearest_folder(folder))


def _features_bytes(way: TrunkPass, sources: Sources) -> int:
    with torch.random.fork_rng([way.device] if way.device.type == "cuda" else []):
        one = way.fresh(sources.train, np.arange(1)).inputs
    num = sum(len(source) for source in vars(sources).values() if source is not None)
    return int(one.numel() * one.element_size()) * num


def _joined(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last

"""Decide the options that are `auto`: what is faster and changes nothing but rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Auto, MemoryFormat
from stepladder.config.recipe import Recipe
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.threads import num_reading_threads
from stepladder.errors import StepladderError
from stepladder.machine import disk_free_bytes
from stepladder.machine.filesystem import nearest_folder
from stepladder.models.features import evaluating
from stepladder.models.forwards import as_built
from stepladder.optim.table import spec_of
from stepladder.task.contract import Task
from stepladder.training.features.feature_pass import TrunkPass, read_batch
from stepladder.training.features.feature_rules import agree, why_no_features
from stepladder.training.randomness import random_state_kept
from stepladder.training.setup.build import (
    MEMORY_FORMATS,
    Sources,
    keep_memory,
    make_model,
    make_trunk_pass,
    set_execution,
)
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast

_NUM_TRIED: Final = 2  # examples on which the channels-last layout is tried
_DISK_FRAC: Final = 0.5  # of the free space that features may take without being asked for
SWITCH_OFF: Final = "--no-auto switches this off"


def as_before(recipe: Recipe, earlier: Recipe) -> Recipe:
    """Use an earlier attempt's choice for each option that is `auto`."""
    features, optimizer, device = recipe.features, recipe.optimizer, recipe.device
    loader = recipe.loader
    if isinstance(features.cached, Auto):
        features = replace(features, cached=earlier.features.cached)
    if isinstance(optimizer.fused, Auto):
        optimizer = replace(optimizer, fused=earlier.optimizer.fused)
    if device.memory_format is MemoryFormat.AUTO:
        device = replace(device, memory_format=earlier.device.memory_format)
    if isinstance(device.keep_freed_memory, Auto):
        device = replace(device, keep_freed_memory=earlier.device.keep_freed_memory)
    if isinstance(loader.threads, Auto):
        loader = replace(loader, threads=earlier.loader.threads)
    return replace(recipe, loader=loader, features=features, optimizer=optimizer, device=device)


def make_settled_model(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, folder: Path
) -> tuple[Recipe, nn.Module, list[str]]:
    """Build the model, and decide the options that are `auto`.

    Args:
        folder: of the features; may not exist yet.

    Returns:
        The recipe without `auto`, its model, and lines to print: what was chosen, and what could
        not be chosen although the job has the form for it.

    Raises:
        UsageError, ResourceError: as `make_model`.
        StepladderError: if the examples cannot be read.
    """
    model = make_model(recipe, task, device)
    chosen: list[str] = []
    refused: list[str] = []
    if recipe.device.memory_format is MemoryFormat.AUTO:
        layout, why_not = _layout(recipe, task, model, sources, device=device)
        recipe = replace(recipe, device=replace(recipe.device, memory_format=layout))
        if layout is MemoryFormat.CHANNELS_LAST:
            set_execution(recipe, stages_of(recipe.train, recipe.batch)[0], task, model)
            chosen.append("the channels-last layout")
        elif why_not:
            refused.append(f"not using the channels-last layout: {why_not}")
    if isinstance(recipe.optimizer.fused, Auto):
        is_wanted = recipe.auto and _can_fuse(recipe, model, device)
        recipe = replace(recipe, optimizer=replace(recipe.optimizer, fused=is_wanted))
        if is_wanted:
            chosen.append("the fused optimizer")
    if isinstance(recipe.features.cached, Auto):
        way = make_trunk_pass(recipe, task, model, device=device)
        is_wanted, why_not = _can_cache(recipe, way, sources, folder=folder)
        recipe = replace(recipe, features=replace(recipe.features, cached=is_wanted))
        if is_wanted:
            chosen.insert(
                0,
                "cached features (the trunk is frozen, and nothing random comes before the head)",
            )
        elif why_not:
            refused.append(f"not using cached features: {why_not}")
    recipe, more = _settled_machine(recipe, sources, device=device)
    chosen += more
    lines = [f"using {_joined(chosen)}; {SWITCH_OFF}"] if chosen else []
    return recipe, model, lines + refused


def settled(
    recipe: Recipe, task: Task, sources: Sources, *, device: torch.device, folder: Path
) -> Recipe:
    """Return the recipe without `auto`; a model is built only if an option of it is `auto`."""
    options = (recipe.features.cached, recipe.optimizer.fused, recipe.device.memory_format)
    if not any(value in (Auto.AUTO, MemoryFormat.AUTO) for value in options):
        return _settled_machine(recipe, sources, device=device)[0]
    return make_settled_model(recipe, task, sources, device=device, folder=folder)[0]


def _settled_machine(
    recipe: Recipe, sources: Sources, *, device: torch.device
) -> tuple[Recipe, list[str]]:
    """Decide the options that do not depend on the model, and name those that `auto` turned on."""
    loader, options = recipe.loader, recipe.device
    chosen: list[str] = []
    if isinstance(loader.threads, Auto):
        default = sources.train.default_threads  # a Dataset has its own: it may not be thread-safe
        is_plain = not recipe.auto and default is None
        loader = replace(loader, threads=1 if is_plain else 0)
        num_threads = num_reading_threads(loader.num_threads, default)
        if recipe.auto and num_threads > 1:
            chosen.append(f"{num_threads} reading threads")
    if isinstance(options.keep_freed_memory, Auto):
        options = replace(options, keep_freed_memory=recipe.auto and not options.divides_model)
        if device.type == "cpu" and keep_memory(recipe):
            chosen.append("an allocator that keeps freed memory")
    return replace(recipe, loader=loader, device=options), chosen


def _layout(
    recipe: Recipe, task: Task, model: nn.Module, sources: Sources, *, device: torch.device
) -> tuple[MemoryFormat, str]:
    """Choose the layout, convert the model to it, and return why channels-last fails, if so.

    Code that is right for contiguous tensors may fail in channels-last: `x.view(len(x), -1)` after
    a convolution, or 5-dimensional weights. Two examples therefore run through loss and gradient in
    both layouts, in eval mode, before it is chosen. An IterableDataset is not read in advance.
    """
    plain, wanted = MemoryFormat.CONTIGUOUS, MemoryFormat.CHANNELS_LAST
    has_conv = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if not (recipe.auto and has_conv) or isinstance(sources.train, ArrivalSource):
        return plain, ""
    with random_state_kept():
        try:
            before = _losses(recipe, task, model, sources, plain, device=device)
        except StepladderError:
            raise
        except Exception:  # the Task fails in any layout: its first step reports where
            return plain, ""
        try:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            after = _losses(recipe, task, model, sources, wanted, device=device)
            is_same = agree(after, before, recipe.device.precision, is_tf32=device.type == "cuda")
            why_not = "" if is_same else "the losses of two examples change"
        except Exception as error:
            why_not = f"the model fails in it ({_brief(error)})"
        if why_not:
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            return plain, why_not
    return wanted, ""


def _losses(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    sources: Sources,
    layout: MemoryFormat,
    *,
    device: torch.device,
) -> Tensor:
    """Return the losses of the first examples, and compute their gradient, without a trace."""
    rows = np.arange(min(_NUM_TRIED, len(sources.train)))
    batch = read_batch(sources.train, rows).to(device, memory_format=MEMORY_FORMATS[layout])
    with evaluating(model), as_built(model), torch.enable_grad():
        batch = task.augment(batch, seed=recipe.seed, epoch=0)
        with autocast(device, recipe.device.precision):
            result = task.loss(model, batch)
        losses = result[0] if isinstance(result, tuple) else result
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        if weights and losses.requires_grad:
            torch.autograd.grad(losses.sum(), weights, allow_unused=True)
    return losses.detach()


def _can_fuse(recipe: Recipe, model: nn.Module, device: torch.device) -> bool:
    """Return whether one kernel updates all weights; torch's fused kernels need real numbers."""
    is_real = all(weight.is_floating_point() for weight in model.parameters())
    return spec_of(recipe.optimizer.name).can_fuse(device.type) and is_real


def _can_cache(
    recipe: Recipe, way: TrunkPass, sources: Sources, *, folder: Path
) -> tuple[bool, str]:
    """Return whether features can be cached exactly and take at most half of the free disk.

    Returns:
        That, and why not, if the job has the form for it: a frozen trunk and no random views.
    """
    if not recipe.auto or recipe.features.cached_views or recipe.asynchronous.is_on:
        return False, ""  # fixed views are other examples: only if they are asked for
    with random_state_kept():
        try:
            if why_no_features(way, recipe.train, sources.train) is not None:
                return False, ""
            needed = _features_bytes(recipe, way, sources)
        except StepladderError:
            raise
        except Exception as error:  # a Task whose trunk cannot run by itself trains without
            return False, f"trunk and head fail separately ({_brief(error)})"
    free = disk_free_bytes(nearest_folder(folder))
    if needed <= _DISK_FRAC * free:
        return True, ""
    return False, (
        f"they need {needed / 1e6:,.0f} MB, more than half of the {free / 1e6:,.0f} MB that are "
        f"free at {nearest_folder(folder)}; --features.cached uses them nevertheless"
    )


def _features_bytes(recipe: Recipe, way: TrunkPass, sources: Sources) -> int:
    one = way.fresh(sources.train, np.arange(1)).inputs
    num_train = round(len(sources.train) * recipe.data.fraction)
    num = num_train + sum(len(part) for part in (sources.val, sources.test) if part is not None)
    return int(one.numel() * one.element_size()) * num


def _brief(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _joined(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last

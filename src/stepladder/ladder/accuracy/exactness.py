"""Do two recipes compute the same: losses, scores and gradients, compared elementwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd as Dropout

from stepladder.config.choices import Precision, Where
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.ladder.limits.guard import TrialFailed
from stepladder.measuring.subject import Subject, open_subject
from stepladder.models.features import evaluating
from stepladder.models.tf32 import without_tf32
from stepladder.optim.schedule import base_lr
from stepladder.records.ladder import Exactness
from stepladder.task.contract import Task
from stepladder.training.features.feature_task import FeatureTask, require_features
from stepladder.training.randomness import seed_step
from stepladder.training.setup.build import Sources, make_stage_parts, make_train_reader
from stepladder.training.stage import stages_of
from stepladder.training.step import autocast

NUM_BATCHES: Final = 3
MOST_EXAMPLES: Final = 32
_HALVES: Final = (Precision.BF16, Precision.FP16)
MAX_DIFFERENCE: Final = 1e-3
"""Largest difference that counts as rounding, relative to the largest value of the tensor."""
_LEAST_FRAC: Final = 1e-2
"""Smallest scale of a tensor, relative to the largest value of its kind.

A gradient that is zero in theory, such as that of a bias before BatchNorm, is only rounding noise.
"""
WEIGHTS: Final = "weights after a step"
_KNOWN: Final = 1e-2
"""Largest relative difference of two gradients for which their steps are compared.

Optimizers like Adam take a full step for any gradient, and the sign of a tiny one is rounding.
"""
_RATES: Final = ("drop_prob", "drop_rate", "dropout")
"""Attributes with the rate of a dropout that a layer calls as a function: attention, DropPath."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What a recipe runs on: the task, and the sources that the recipe reads."""

    task: Task
    sources: Sources


@dataclass
class Computed:
    """What a recipe computes from the first batches, by kind.

    Attributes:
        numbers: tensors in the order in which they are computed.
        slopes: for each step, the gradients of all trained weights, in the order of the weights.
    """

    numbers: dict[str, list[Tensor]] = field(default_factory=dict)
    slopes: list[list[Tensor]] = field(default_factory=list)

    def add(self, kind: str, value: Tensor) -> None:
        """Keep a copy on the CPU."""
        self.numbers.setdefault(kind, []).append(_copy(value))


def _copy(value: Tensor) -> Tensor:
    dtype = torch.float64 if value.dtype is torch.float64 else torch.float32
    return value.detach().to("cpu", dtype, copy=True)


def compute(recipe: Recipe, material: Material, *, device: torch.device, steps: bool) -> Computed:
    """Compute losses, scores and gradients of the first batches, from the recipe's initial weights.

    Uses fp32 for recipes in 16 bits, and never TF32, as such rounding hides other differences. Uses
    a part of each batch, so that this needs no more memory than a step. A step with master weights
    is a different one, so that master weights are kept.

    Dropout is disabled: layout and compiling change which numbers are drawn, but not what is
    computed from them. This does not affect a model that calls `dropout` with a rate of its own.

    Args:
        steps: also take optimizer steps, and add the weights after each.

    Raises:
        UsageError: if the recipe caches features, but they cannot be cached.
    """
    recipe = _comparable(recipe)
    found = Computed()
    opened = open_subject(recipe, material.task, material.sources, device=device)
    with without_tf32(device), opened as base:
        drop_nothing(base.model)
        if recipe.features.cached:
            require_features(base.trunk_pass(), base.recipe.train, base.sources.train)
        subject = _on_features(base) if recipe.features.cached else base
        moved = [_moved(base, batch) for batch in _batches(base)]
        for step, batch in enumerate(moved):
            _add_losses(found, subject, batch, step)
        for step, batch in enumerate(moved if steps else ()):
            _add_slopes(found, subject, batch, step)
            _add_step(found, subject, batch, step)
    return found


def is_compared_in_fp32(recipe: Recipe) -> bool:
    """Return True if a recipe in 16 bits is compared in fp32."""
    return recipe.device.precision in _HALVES


def _comparable(recipe: Recipe) -> Recipe:
    """Return the recipe to compute the compared numbers with."""
    size = min(recipe.batch.micro_batch_size or recipe.batch.global_batch_size, MOST_EXAMPLES)
    batch = replace(
        recipe.batch,
        global_batch_size=size,
        base_batch_size=size,
        micro_batch_size=None,
        lr=base_lr(recipe.batch),
        lr_all=base_lr(recipe.batch, is_second_stage=True),
    )
    if not is_compared_in_fp32(recipe):
        return replace(recipe, batch=batch)
    return replace(recipe, batch=batch, device=replace(recipe.device, precision=Precision.FP32))


def describe_difference(before: Computed, after: Computed, exactness: Exactness) -> str:
    """Return how exactly two recipes compute the same: "equal", or "same to 1e-5".

    Raises:
        TrialFailed: if they differ by more than the exactness allows.
    """
    largest, kind = 0.0, ""
    for name in before.numbers.keys() & after.numbers.keys():
        pairs = zip(before.numbers[name], after.numbers[name], strict=True)
        if name == WEIGHTS and exactness is not Exactness.BITWISE:
            pairs = zip(before.numbers[name], _along_known(before, after), strict=True)
        least = _LEAST_FRAC * max(_largest(value) for value in before.numbers[name])
        difference = max(_difference(a, b, least=least) for a, b in pairs)
        if not difference <= largest:  # a nan counts as larger than anything
            largest, kind = difference, name
    if largest == 0:
        return "equal"
    if exactness is Exactness.BITWISE or not largest <= MAX_DIFFERENCE:
        raise TrialFailed(f"different results: {kind} differ by {largest:.1g}")
    return f"same to 1e{math.ceil(math.log10(largest))}"


def _along_known(before: Computed, after: Computed) -> Iterator[Tensor]:
    """Yield the weights after each step; those before the change if gradients differ too much."""
    weights = zip(before.numbers[WEIGHTS], after.numbers[WEIGHTS], strict=True)
    known: list[Tensor] = []
    for slopes in zip(before.slopes, after.slopes, strict=True):
        agree = [(a - b).abs() <= _KNOWN * a.abs() for a, b in zip(*slopes, strict=True)]
        known = [a & b for a, b in zip(known, agree, strict=True)] if known else agree
        for is_known, (one, other) in zip(known, weights, strict=False):
            yield torch.where(is_known, other, one)


def _difference(before: Tensor, after: Tensor, *, least: float) -> float:
    """Return the largest difference, relative to the largest value before, or to `least`."""
    if before.shape != after.shape:
        return math.inf
    scale, apart = max(_largest(before), least), _largest(before - after)
    return apart / scale if scale else apart


def _largest(value: Tensor) -> float:
    return float(value.abs().max()) if value.numel() else 0.0


def drop_nothing(model: nn.Module) -> None:
    """Set the rates of dropout layers to 0."""
    for module in model.modules():
        for name in ("p",) if isinstance(module, Dropout) else _RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _batches(subject: Subject) -> Iterator[Batch]:
    recipe = subject.recipe
    streaming = replace(recipe, data=replace(recipe.data, where=Where.STREAM))
    reader = make_train_reader(streaming, subject.sources.train)
    batches = reader.epoch(0)
    try:
        yield from itertools.islice(batches, NUM_BATCHES)
    finally:
        batches.close()
        reader.close()


def _moved(base: Subject, batch: Batch) -> Batch:
    """Return a batch for a step: on the device, and augmented or as features."""
    if base.recipe.features.cached:
        return _features(base, batch)
    return base.task.augment(base.to_device(batch), seed=base.recipe.seed, epoch=0)


def _on_features(base: Subject) -> Subject:
    """Return the same subject with steps on features."""
    task = FeatureTask(base.task)
    stage = stages_of(base.recipe.train, base.recipe.batch)[-1]
    parts = make_stage_parts(
        base.recipe, stage, task, base.model, device=base.device, clock=base.clock
    )
    return replace(base, task=task, parts=parts)


def _features(subject: Subject, batch: Batch) -> Batch:
    way = subject.trunk_pass()
    with evaluating(subject.model):
        features = way.features(batch)
    moved = subject.to_device(batch)
    return Batch(features.clone(), moved.targets, batch.ids)


def _add_losses(found: Computed, subject: Subject, batch: Batch, step: int) -> None:
    """Add losses and gradients of a step, and the scores of a validation."""
    recipe, device, model, task = subject.recipe, subject.device, subject.model, subject.task
    parts = task.split(model)
    judged = model if parts is None else parts[1]
    found.add("losses", _backward(subject, batch, step))
    for weight in _learning(judged):
        if weight.grad is not None:
            found.add("gradients", weight.grad)
    _forget_gradients(model)
    with evaluating(model), autocast(device, recipe.device.precision):
        outputs = task.metrics(model, batch).outputs if _is_plain(batch) else None
    if outputs is not None:
        found.add("scores", outputs)


def _add_slopes(found: Computed, subject: Subject, batch: Batch, step: int) -> None:
    """Add the gradients of the next step, zero for weights without a gradient."""
    _backward(subject, batch, step)
    pairs = [(weight, weight.grad) for weight in _learning(subject.model)]
    found.slopes.append([_copy(torch.zeros_like(w) if g is None else g) for w, g in pairs])
    _forget_gradients(subject.model)


def _backward(subject: Subject, batch: Batch, step: int) -> Tensor:
    """Compute the gradients of a batch, and return its losses."""
    recipe, device = subject.recipe, subject.device
    seed_step(recipe.seed, step, 0, device)
    with autocast(device, recipe.device.precision):
        result = subject.task.loss(subject.model, batch)
    losses = (result[0] if isinstance(result, tuple) else result).float()
    losses.mean().backward()  # type: ignore[no-untyped-call]
    return losses


def _learning(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _forget_gradients(model: nn.Module) -> None:
    for weight in _learning(model):
        weight.grad = None


def _is_plain(batch: Batch) -> bool:
    """Return True if a validation could evaluate the batch: its targets are not mixed."""
    return not (isinstance(batch.targets, Tensor) and batch.targets.is_floating_point())


def _add_step(found: Computed, subject: Subject, batch: Batch, step: int) -> None:
    subject.parts.step(batch, step=step, lr=subject.lr)
    for weight in _learning(subject.model):
        found.add(WEIGHTS, weight)

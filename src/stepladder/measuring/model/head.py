"""Time a frozen trunk's forward pass, and train only the head on features of the right shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stepladder.config.choices import Where
from stepladder.config.recipe import FeaturesConfig
from stepladder.data.batch import Batch
from stepladder.data.features.feature_files import Features
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.reading.reader import Source
from stepladder.measuring.blocks.timing import seconds_of
from stepladder.measuring.subject import Subject
from stepladder.measuring.watchdog import attempt
from stepladder.models.features import evaluating
from stepladder.training.features.feature_pass import batch_size_on, num_views
from stepladder.training.features.feature_task import FeatureTask
from stepladder.training.setup.build import Sources, make_clock, make_stage_parts
from stepladder.training.stage import stages_of
from stepladder.training.training import stand_in

MAX_ROWS = 4096
"""Maximum rows of synthetic features; their number makes no difference to a step."""


@dataclass(frozen=True, kw_only=True)
class TrunkTime:
    """Times of the trunk on batches of the size used to compute features.

    Attributes:
        example_s: forward pass of one example.
        augment_s: making a random view of an example if features of views are cached, else 0.
        batch: one of the batches in host memory, with its features as inputs.
    """

    example_s: float
    augment_s: float = 0.0
    batch: Batch

    @property
    def feature_bytes(self) -> int:
        """Return the bytes of the features of one example."""
        features: Tensor = self.batch.inputs
        return features[:1].numel() * features.element_size()


def measure_trunk(subject: Subject, *, budget_s: float) -> TrunkTime | None:
    """Time the trunk's forward pass on a batch on the device.

    None if the model has no trunk, or its output is not a tensor with one row per example.
    """
    if subject.trunk_and_head is None:
        return None
    batch = subject.batch_of(batch_size_on(subject.device))
    features, seconds = _through_trunk(subject, batch, budget_s=budget_s)
    num_examples = batch.ids.numel()
    if not isinstance(features, Tensor) or len(features) != num_examples:
        return None
    plain = features.to("cpu", copy=True).clone()  # an ordinary tensor: autograd may keep it
    return TrunkTime(
        example_s=seconds / num_examples,
        augment_s=_augment_s(subject, batch) / num_examples,
        batch=Batch(plain, batch.targets, batch.ids),
    )


def try_trunk(subject: Subject, *, budget_s: float) -> TrunkTime | None:
    """Return `measure_trunk`, or None if memory runs out or the model raises an error.

    Features use larger batches than a step may: a job that does not cache them can do without.
    """
    return _tried(lambda: measure_trunk(subject, budget_s=budget_s))


def look_again(subject: Subject, trunk: TrunkTime, *, budget_s: float) -> TrunkTime:
    """Time the trunk again, later, and keep the shorter time; the first if this fails.

    Another process can slow down a whole timing, but never speeds one up.
    """

    def look() -> TrunkTime:
        batch = subject.batch_of(batch_size_on(subject.device))
        _, seconds = _through_trunk(subject, batch, budget_s=budget_s)
        return replace(trunk, example_s=min(trunk.example_s, seconds / batch.ids.numel()))

    return _tried(look) or trunk


def _tried(measure: Callable[[], TrunkTime | None]) -> TrunkTime | None:
    """Return the trunk's time, or None if the measurement fails; without a deadline."""
    return attempt(measure, foretold_s=math.inf, at_least_s=0).value


def _through_trunk(subject: Subject, batch: Batch, *, budget_s: float) -> tuple[Any, float]:
    """Return the features of a batch, and the seconds of the fastest pass after the first."""
    way = subject.trunk_pass()
    on_device = subject.to_device(batch)
    outputs: list[Any] = []

    def run() -> None:
        outputs[:] = [way.features(on_device)]

    with evaluating(subject.model):
        first_s = seconds_of(run, subject.device)
        rounds = max(1, min(5, int(budget_s / first_s)))
        seconds = min(seconds_of(run, subject.device) for _ in range(rounds))
    return outputs[0], seconds


def _augment_s(subject: Subject, batch: Batch) -> float:
    """Time one random augmentation of a batch; 0 if no views are cached."""
    if not num_views(subject.recipe.features, subject.task):
        return 0.0
    on_device, seed = subject.to_device(batch), subject.recipe.seed

    def augment() -> None:
        subject.task.augment(on_device, seed=seed, epoch=0)

    return min(seconds_of(augment, subject.device) for _ in range(2))


def on_features(subject: Subject, trunk: TrunkTime) -> Subject | None:
    """Return the subject whose steps train only the head, on synthetic features.

    The features and targets of one batch are repeated for all examples. None if the targets are not
    a single tensor. The model is shared with the subject, so its head is trained further.
    """
    if not (trunk.batch.targets is None or isinstance(trunk.batch.targets, Tensor)):
        return None
    recipe = subject.recipe
    fraction = min(recipe.data.fraction, MAX_ROWS / len(subject.sources.train))
    recipe = replace(
        recipe,
        data=replace(recipe.data, fraction=fraction, where=Where.STREAM),
        features=FeaturesConfig(),
    )
    task, clock = FeatureTask(subject.task), make_clock(subject.device)
    sources = Sources(
        train=_made_up(subject.sources.train, trunk.batch, MAX_ROWS),
        val=None
        if subject.sources.val is None
        else _made_up(subject.sources.val, trunk.batch, len(subject.sources.val)),
        test=None,
    )
    stage = stages_of(recipe.train, recipe.batch)[-1]
    world, example = subject.world, None
    if not world.is_alone:
        example = stand_in(sources.train, subject.device, subject.memory_format)
    parts = make_stage_parts(
        recipe,
        stage,
        task,
        subject.model,
        device=subject.device,
        clock=clock,
        world=world,
        example=example,
    )
    return replace(
        subject, task=task, recipe=recipe, sources=sources, parts=parts, clock=clock, num_steps=0
    )


def _made_up(source: Source, batch: Batch, num_rows: int) -> Source:
    """Repeat a batch's features and targets over the first rows of a source."""
    rows = torch.arange(min(num_rows, len(source))) % batch.ids.numel()
    held = Features(
        features=batch.inputs[rows],
        targets=None if batch.targets is None else batch.targets[rows],
        seconds=0.0,
    )
    return _Wrapping(source, held)


class _Wrapping(HeldFeatures):
    """Features that repeat from the start at their end."""

    def read(self, rows: Any) -> Any:
        """Copy rows out of memory."""
        return super().read(rows % len(self.features))

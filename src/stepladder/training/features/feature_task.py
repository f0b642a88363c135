"""A task on cached features, which trains only the head; `feature_cache.py` stores them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.features.feature_source import FreshFeatures, LazyFeatures
from stepladder.data.order.order_choice import order_of
from stepladder.data.reading.reader import Source
from stepladder.data.remote.feature_copies import remote_features_folder
from stepladder.data.remote.places import object_place
from stepladder.models.features import hash_trunk
from stepladder.records import Json
from stepladder.task.contract import Metrics, Task
from stepladder.training.features.feature_cache import FeatureEngine, FeatureOpener
from stepladder.training.features.feature_pass import num_views, trunk_of
from stepladder.training.features.feature_rules import require_features, why_no_features
from stepladder.training.setup.build import Sources, make_trunk_pass
from stepladder.training.setup.run_folder import FEATURES

__all__ = [
    "FeatureTask",
    "features_folder",
    "fresh_features",
    "num_views",
    "open_features",
    "require_features",
    "why_no_features",
]


class FeatureTask(Task):
    """A task on features: loss and metrics use the head, everything else is unchanged.

    The model is still the whole model, so that checkpoints, predict and export work the same.

    Args:
        base: the task on examples.
        num_views: random views of each training example; 0: the unmodified example.
    """

    def __init__(self, base: Task, *, num_views: int = 0) -> None:
        self.base = base
        self.num_views = num_views
        self._split: tuple[nn.Module, nn.Module] | None = None  # a model, and its head

    def build_model(self, recipe: Recipe) -> nn.Module:
        """Build the whole model."""
        return self.base.build_model(recipe)

    def data(self, split: Split) -> Any:
        """Return a split of the original examples."""
        return self.base.data(split)

    @property
    def runs_head_alone(self) -> bool:
        """Always True: features go to the head."""
        return True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor | tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of each example, from its features."""
        return self.base.loss(self._head(model), cast_for_head(batch))

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        """Return losses and metrics from features."""
        return self.base.metrics(self._head(model), cast_for_head(batch))

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:  # noqa: ARG002
        """Select this epoch's view of each example; without views, return the batch."""
        if not self.num_views:
            return batch
        return Batch(batch.inputs[:, epoch % self.num_views], batch.targets, batch.ids)

    def describe(self) -> Mapping[str, Json]:
        """Return the description of the task on examples."""
        return self.base.describe()

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
        """Return (trunk, head) of the whole model."""
        return self.base.split(model)

    @property
    def is_random_before_head(self) -> bool:
        """Always False: features are not random."""
        return False

    def _head(self, model: nn.Module) -> nn.Module:
        if self._split is None or self._split[0] is not model:
            parts = self.base.split(model)
            assert parts is not None  # checked by why_no_features
            self._split = model, _without_idle_layers(parts[1])
        return self._split[1]


def cast_for_head(batch: Batch) -> Batch:
    """Cast bf16 features to fp32 outside of autocast, for the head's fp32 weights."""
    features = batch.inputs
    if features.dtype is not torch.bfloat16 or torch.is_autocast_enabled(features.device.type):
        return batch
    return Batch(features.float(), batch.targets, batch.ids)


def _without_idle_layers(head: nn.Module) -> nn.Module:
    """Remove dropout layers with p=0: calling one costs as much as a small linear layer."""
    if type(head) is not nn.Sequential:
        return head
    layers = [layer for layer in head if not (isinstance(layer, nn.Dropout) and layer.p == 0)]
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def features_folder(job: JobConfig, task: Task) -> Path:
    """Return the folder of a job's features: next to the task's store, or in the run's folder.

    A task has a store if it has an attribute `store` with a path. If the disk of the store is
    read-only, the run's folder is used. The features of a store in an object store are next to the
    local cache, and are copied to and from the folder next to the store.
    """
    store = getattr(getattr(task, "store", None), "path", None)
    if isinstance(store, Path) and (place := object_place(store)) is not None:
        return remote_features_folder(place, job.recipe.data.cache_dir)
    if isinstance(store, Path):
        beside = store.with_name(f"{store.name}.features")
        if os.access(beside if beside.exists() else store.absolute().parent, os.W_OK):
            return beside
    return job.run.dir / FEATURES


def open_features(
    recipe: Recipe,
    task: Task,
    model: nn.Module,
    sources: Sources,
    *,
    folder: Path,
    device: torch.device,
    on_progress: Callable[[int, int], None] | None = None,
    on_message: Callable[[str], None] | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    is_checked: bool = False,
    is_test_wanted: bool = False,
    engine: FeatureEngine | None = None,
    known: Path | None = None,
) -> Sources:
    """Return the splits as features: loaded from a folder if they are there, computed otherwise.

    The features of test are opened at their first read, unless `is_test_wanted`. With random views,
    train has features of shape (rows, views, ...), and `FeatureTask.augment` selects one view.

    Args:
        task: the task on examples.
        model: on the device, with the final weights of its trunk.
        folder: of all features of this data; each key has a folder in it.
        on_progress: called with the number of examples done and their total; for test only if
            `is_test_wanted`.
        on_message: called with messages to the user.
        is_cancelled: called before each batch.
        is_checked: `require_features` has been called before.
        is_test_wanted: open the features of test now.
        engine: computes the features; None: this process does.
        known: another such folder, from which features are read, too.

    Raises:
        UsageError: if features cannot be cached.
        ResourceError: if they cannot be written.
        EvaluationCancelled: if is_cancelled returns True; computed features are kept.
    """
    way = make_trunk_pass(recipe, task, model, device=device)
    if not is_checked:
        require_features(way, recipe.train, sources.train)
    held_out = [sources.val, sources.test] if is_test_wanted else [sources.val]
    opener = FeatureOpener(
        recipe=recipe,
        way=way,
        folder=folder,
        trunk=hash_trunk(trunk_of(task, model)),
        total=_num_used(recipe, sources.train)
        + sum(len(source) for source in held_out if source is not None),
        on_progress=on_progress or _ignore,
        on_message=on_message or _ignore,
        is_cancelled=is_cancelled,
        engine=engine,
        known=known,
    )
    train = opener.open(Split.TRAIN, sources.train)
    val = opener.open(Split.VAL, sources.val) if sources.val is not None else None
    return Sources(train=train, val=val, test=_test(opener, sources.test, is_wanted=is_test_wanted))


def _test(opener: FeatureOpener, source: Source | None, *, is_wanted: bool) -> Source | None:
    if source is None:
        return None
    if is_wanted:
        return opener.open(Split.TEST, source)
    quiet = replace(opener, on_progress=_ignore)
    return LazyFeatures(source, lambda: quiet.open(Split.TEST, source))


def fresh_features(
    recipe: Recipe, task: Task, model: nn.Module, sources: Sources, *, device: torch.device
) -> Sources:
    """Return the splits as features that are computed when they are read, and not stored.

    Raises:
        UsageError: if features cannot be cached.
    """
    way = make_trunk_pass(recipe, task, model, device=device)
    require_features(way, recipe.train, sources.train)

    def fresh(source: Source, views: int) -> FreshFeatures:
        def compute(rows: np.ndarray) -> tuple[Any, Any]:
            batch = way.fresh(source, rows, num_views=views)
            return batch.inputs, batch.targets

        return FreshFeatures(source, compute)

    return Sources(
        train=fresh(sources.train, way.num_views),
        val=fresh(sources.val, 0) if sources.val is not None else None,
        test=fresh(sources.test, 0) if sources.test is not None else None,
    )


def _num_used(recipe: Recipe, train: Source) -> int:
    """Return the number of training rows in the recipe's sample."""
    return order_of(recipe.data, train, seed=0).num_samples


def _ignore(*_: object) -> None:
    """Do nothing."""

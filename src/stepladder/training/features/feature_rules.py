"""Check whether the features of a job can be cached, and explain why not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Precision, Split, TrainMode
from stepladder.data.batch import Batch
from stepladder.data.reading.datasets import DatasetSource, as_source
from stepladder.data.reading.examples import ArrivalSource
from stepladder.data.reading.reader import Source
from stepladder.errors import UsageError
from stepladder.models.features import evaluating
from stepladder.models.forwards import as_built
from stepladder.models.tf32 import without_tf32
from stepladder.task.contract import Metrics, Task
from stepladder.training.features.feature_pass import TrunkPass, read_batch
from stepladder.training.step import autocast, split_batch

TOLERANCE = 1e-3
TOLERANCE_TF32 = 1e-2
TOLERANCE_HALF = 5e-2
NOT_OWN = "the features of an example depend on the rest of its batch, or are random"
NOT_OWN_FIX = (
    "Remove layers that use the whole batch from the trunk (BatchNorm without running statistics, "
    "a mean over the batch), or train with --features.no-cached."
)
_NUM_PROBED = 2
_WITHOUT = "Train with --features.no-cached."


class _Refusal(NamedTuple):
    why: str
    fix: str = _WITHOUT


def why_no_features(way: TrunkPass, learns: TrainMode, train: Source | None = None) -> str | None:
    """Return why the head cannot be trained on cached features; None if it can.

    Runs two examples through the whole model, and through trunk and head separately: the losses
    must agree, and so must their features in a larger batch. Model and random states do not change.

    Args:
        way: with the model as returned by `make_model`, on its device.
        learns: which weights are trained.
        train: the training split; None: the one of the task.
    """
    refusal = _refusal(way, learns, train)
    return refusal.why if refusal is not None else None


def require_features(way: TrunkPass, learns: TrainMode, train: Source) -> None:
    """Check that training on cached features is equivalent for a job.

    Raises:
        UsageError: if it is not, with the reason and what to do.
    """
    refusal = _refusal(way, learns, train)
    if refusal is not None:
        raise UsageError(
            f"features cannot be cached: {refusal.why}",
            where="features.cached",
            fix=refusal.fix,
        )


def agree(a: Tensor, b: Tensor, precision: Precision, *, is_tf32: bool = False) -> bool:
    """Return True if two results are equal up to rounding in a precision.

    Args:
        is_tf32: at least one of them may come from TF32 operations.
    """
    full = TOLERANCE_TF32 if is_tf32 else TOLERANCE
    tolerance = full if precision is Precision.FP32 else TOLERANCE_HALF
    if a.shape != b.shape or a.numel() == 0:
        return a.shape == b.shape
    a, b = a.double(), b.double()
    return float((a - b).norm()) <= tolerance * (float(b.norm()) + 1e-12)


def _refusal(way: TrunkPass, learns: TrainMode, train: Source | None) -> _Refusal | None:
    refusal = _refusal_of_job(way, learns)
    if refusal is not None:
        return refusal
    if train is None:
        data = way.task.data(Split.TRAIN)
        train = as_source(data) if data is not None else None
    if train is None or len(train) == 0:
        return _Refusal("the train split has no examples")
    if isinstance(train, ArrivalSource):
        return _Refusal(
            "the examples of an IterableDataset have no numbers by which their features could be "
            "found again"
        )
    if isinstance(train, DatasetSource) and train.is_stochastic:
        return _Refusal("the dataset returns different values when an example is read again")
    return _probe(way, train)


def _refusal_of_job(way: TrunkPass, learns: TrainMode) -> _Refusal | None:
    if learns is not TrainMode.HEAD:
        when = "" if learns is TrainMode.ALL else " in the second stage"
        return _Refusal(f"all weights are trained{when}, so features change", _WITHOUT)
    if way.task.split(way.model) is None:
        fix = "Return (trunk, head) from split(model), or train with --features.no-cached."
        return _Refusal("the task does not define which part of its model is the head", fix)
    if way.task.is_random_before_head and not way.num_views:
        return _Refusal(
            "the examples are augmented at random before they reach the head",
            "Turn augmentation off, or cache random views of each example: "
            "--features.cached-views 4. If your own task has no augmentation, set "
            "its is_random_before_head to False.",
        )
    return None


def _probe(way: TrunkPass, source: Source) -> _Refusal | None:
    task, model, device, precision = way.task, way.model, way.device, way.precision
    batch = read_batch(source, np.arange(min(_NUM_PROBED, len(source))))
    if not (batch.targets is None or isinstance(batch.targets, Tensor)):
        return _Refusal("the targets of a batch are several tensors or none, not a single one")
    on_device = way.on_device(batch)
    devices = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        evaluating(model),
        as_built(model),  # nothing to compile
        without_tf32(device),
    ):
        if way.num_views and (why := _why_no_views(task, on_device, way.seed)) is not None:
            return why
        features = way.features(batch)
        if not isinstance(features, Tensor) or features.shape[:1] != batch.ids.shape:
            return _Refusal("the trunk does not return a single tensor with one row per example")
        parts = task.split(model)
        assert parts is not None
        inputs = Batch(features, on_device.targets, batch.ids)
        with autocast(device, precision):
            whole = _results(task, model, on_device)
            try:
                apart = _results(task, parts[1], inputs)
            except Exception as error:
                first = next(iter(str(error).splitlines()), "")
                return _Refusal(
                    "the task's loss or metrics fail with only the head and the features "
                    f"({type(error).__name__}: {first})"
                )
        among = _among_others(way, source)
    if not all(agree(a, b, precision) for a, b in zip(apart, whole, strict=True)):
        return _Refusal(
            "head(trunk(inputs)), the two parts that split(model) of the Task returns, does not "
            "have the same loss as the whole model",
            "If loss() or metrics() change the inputs before the model gets them, move that into "
            "the trunk. Otherwise train with --features.no-cached.",
        )
    return None if agree(among, features, precision) else _Refusal(NOT_OWN, NOT_OWN_FIX)


def _among_others(way: TrunkPass, source: Source) -> Tensor:
    """Return the features of the probed examples, computed in a larger batch."""
    rows = np.arange(min(2 * _NUM_PROBED, len(source)))
    return way.features(read_batch(source, rows))[:_NUM_PROBED]


def _why_no_views(task: Task, batch: Batch, seed: int) -> _Refusal | None:
    view = task.augment(batch, seed=seed, epoch=0)
    targets = batch.targets
    if view.targets is not targets and not (
        isinstance(view.targets, Tensor)
        and view.targets.shape == targets.shape
        and torch.equal(view.targets, targets)
    ):
        return _Refusal(
            "the augmentation changes the targets (MixUp mixes examples)",
            "Turn MixUp off (--augment.mixup-alpha 0), or train with --features.no-cached.",
        )
    alone = task.augment(next(split_batch(batch, 1)), seed=seed, epoch=0)
    pair = view.inputs[:1], alone.inputs
    if all(isinstance(part, Tensor) for part in pair) and not agree(*pair, Precision.FP32):
        return _Refusal("the augmentation of an example depends on the rest of its batch")
    return None


def _results(task: Task, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
    """Return the losses of training and validation, and class scores if there are any."""
    loss: Any = task.loss(model, batch)
    metrics: Metrics = task.metrics(model, batch)
    outputs = () if metrics.outputs is None else (metrics.outputs,)
    return (loss[0] if isinstance(loss, tuple) else loss, metrics.losses, *outputs)

"""Classes of examples, as passed to the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.checks.evidence.loss_calls import LossCall, loss_calls
from stepladder.checks.evidence.sample import take
from stepladder.checks.evidence.spread import spread_sample
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.measuring.probe import untouched

Ints = NDArray[np.int64]
_FEW = 4  # examples to record what is passed to the loss


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Classes of examples of a split.

    Attributes:
        rows: of the examples, (n,).
        values: class of each, (n,).
        is_all: whether these are all examples of the split.
    """

    rows: Ints
    values: Ints
    is_all: bool


@dataclass(frozen=True, kw_only=True)
class LossView:
    """What is passed to a loss function for a few training examples, even if it then raises.

    Attributes:
        calls: of loss functions, softmax and sigmoid.
        targets: of the same examples, from the dataset; None: not a single tensor.
        error: what the loss raised, or None.
    """

    calls: tuple[LossCall, ...]
    targets: Tensor | None
    error: Exception | None

    @property
    def call(self) -> LossCall | None:
        """The call with exactly the targets of the dataset, or None."""
        if self.targets is None:
            return None
        for call in self.calls:
            if call.is_loss and call.targets is not None and _same(call.targets, self.targets):
                return call
        return None


def loss_view(job: CheckedJob) -> LossView:
    """Record what is passed to the loss for a few examples, on the CPU.

    On CUDA a label out of range would make the device unusable for the whole process.
    """
    return job.remember("loss view", lambda: _look(job))


def _look(job: CheckedJob) -> LossView:
    cpu = torch.device("cpu")
    batch = job.train_batches(1)[0]
    few = take(batch, torch.arange(min(_FEW, len(batch.ids)))).to(cpu)
    model = job.model().to(cpu).eval()
    error: Exception | None = None
    with untouched(), torch.no_grad(), loss_calls() as calls:
        try:
            job.task.loss(model, few)
        except Exception as raised:  # the calls before the error are what is needed
            error = raised
    targets = few.targets if isinstance(few.targets, Tensor) else None
    return LossView(calls=tuple(calls), targets=targets, error=error)


def class_labels(job: CheckedJob, split: Split) -> Labels | None:
    """Return the classes of a split: of all examples if the dataset lists them, else of a sample.

    The dataset's list is used only if it agrees with the examples. None if examples do not have a
    single class, and for test, whose labels no check reads.
    """
    if split is Split.TEST:
        return None
    return job.remember(f"labels.{split.value}", lambda: _labels(job, split))


def _labels(job: CheckedJob, split: Split) -> Labels | None:
    seen = spread_sample(job, split)
    if seen is None:
        return None
    parts = [batch.targets for batch in seen.batches]
    if not all(_are_classes(part) for part in parts):
        return None
    order = np.argsort(seen.rows)
    rows, values = seen.rows[order], torch.cat(parts).cpu().numpy().astype(np.int64)[order]
    named = job.labels(split)
    if named is not None and np.array_equal(named[rows], values):
        return Labels(rows=np.arange(len(named)), values=named, is_all=True)
    return Labels(rows=rows, values=values, is_all=len(rows) == seen.num_all)


def class_name(job: CheckedJob, label: int) -> str:
    """Return the name of a class from the task or its data; else its number."""
    for owner in (job.task, job.sources.train, getattr(job.sources.train, "data", None)):
        names = getattr(owner, "classes", None)
        if isinstance(names, (list, tuple)) and 0 <= label < len(names):
            return str(names[label])
    return f"class {label}"


def _are_classes(targets: object) -> bool:
    return (
        isinstance(targets, Tensor)
        and targets.dim() == 1
        and not targets.is_floating_point()
        and not targets.is_complex()
    )


def _same(given: Tensor, targets: Tensor) -> bool:
    """Return True if two tensors have the same values, whatever their shapes and dtypes."""
    if given.numel() != targets.numel():
        return False
    return torch.equal(given.reshape(-1).double(), targets.reshape(-1).double())

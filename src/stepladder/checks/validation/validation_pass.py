"""Validation works before training: the first and the last batch, all metrics, twice."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.dropout import _DropoutNd as Dropout

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.task.contract import Metrics
from stepladder.training.randomness import seed_everything

_SAME = 1e-4  # of the size of the losses
_SHARE = 0.25  # of the time left, for the rest of the split
_LONGEST_S = 10.0
_TRAIN_FIX = (
    "Remove train() and training=True from metrics(): stepladder sets the mode of the model."
)


@dataclass
class _Pass:
    """Totals over some batches."""

    num_examples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    worst: str | None = None

    def add(self, metrics: Metrics, num_examples: int) -> None:
        self.num_examples += num_examples
        named = {
            "loss": (metrics.losses.float().sum(), torch.tensor(float(num_examples))),
            **{name: (metrics.sums[name], metrics.counts[name]) for name in metrics.sums},
        }
        for name, (total, count) in named.items():
            value = float(total.double().sum())
            if not math.isfinite(value) and self.worst is None:
                self.worst = name
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0.0) + float(count.double().sum())


def validation_pass(job: CheckedJob) -> Answer:
    """Validate before training: the first batch twice, the last one, then what time allows.

    Checks that metrics() runs, returns one finite loss per example, leaves the model in evaluation
    mode, is not random, and keeps no gradient.
    """
    source = job.sources.val
    if source is None:
        return not_applicable("there is no validation split")
    if isinstance(source, ArrivalSource):
        return not_applicable("validation is an IterableDataset, which would be used up")
    model = job.model().eval()
    first = next(iter(job.held_out_batches(Split.VAL, 1)))
    seen = _Pass()
    problem = _look_at_first(job, model, first, seen)
    if problem is not None:
        return problem
    last = len(source) % len(first.ids) or len(first.ids)
    _, problem = _measure(job, model, _last(job, last))
    if problem is not None:
        return problem
    seen_all = _rest(job, model)
    total = seen_all or seen
    if total.worst is not None:
        return found(
            "validation_fails",
            f"metrics(): the total of {total.worst} over {total.num_examples} validation examples "
            "is NaN or infinite, so at least one example gives such a value",
            fix="In metrics(), check for log(0) or a division by a count that can be 0; also check "
            "the validation inputs for NaN.",
        )
    values = {name: total.sums[name] / total.counts[name] for name in total.sums}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    return passed(
        f"the untrained model has {shown} on validation, and the same when it is repeated",
        coverage=f"{total.num_examples} of the {len(source)} examples, the last {last} as a "
        f"separate batch{_of_one(job, model) if last > 1 else ''}",
    )


def _look_at_first(job: CheckedJob, model: nn.Module, batch: Batch, seen: _Pass) -> Answer | None:
    with _training_layers(model) as in_training:
        once, problem = _measure(job, model, batch)
    if problem is not None or once is None:
        return problem
    if in_training:
        return found(
            "train_mode_in_validation",
            f"metrics() runs {', '.join(sorted(in_training)[:4])} in training mode",
            fix=_TRAIN_FIX,
        )
    if once.losses.requires_grad or (once.outputs is not None and once.outputs.requires_grad):
        return found(
            "gradients_in_validation",
            "metrics() returns tensors that require gradients, although it is called under no_grad",
            fix="Remove torch.enable_grad() from metrics(), or detach its results.",
        )
    twice, problem = _measure_again(job, model, batch)
    if problem is not None or twice is None:
        return problem
    if _apart(once, twice)[1] > _SAME:
        return _not_the_same(job, model, batch, once, twice)
    seen.add(once, len(batch.ids))
    return None


def _apart(one: Metrics, other: Metrics) -> tuple[str, float]:
    """Return what differs most between two passes over the same examples, and its relative size.

    These are the losses if they differ, else one of the sums.
    """
    found = {"losses": _difference(one.losses, other.losses)}
    for name, total in one.sums.items():
        found[f"sums of {name}"] = _difference(total, other.sums.get(name))
    worst = "losses" if found["losses"] > _SAME else max(found, key=lambda name: found[name])
    return worst, found[worst]


def _difference(first: Tensor, second: Tensor | None) -> float:
    if second is None or first.shape != second.shape:
        return math.inf
    a, b = first.double(), second.double()
    return float((a - b).abs().max()) / (1.0 + float(a.abs().max())) if a.numel() else 0.0


def _not_the_same(
    job: CheckedJob, model: nn.Module, batch: Batch, once: Metrics, twice: Metrics
) -> Answer | None:
    """Distinguish random draws from state that is kept, by a third pass with the same seed."""
    again, problem = _measure_again(job, model, batch)
    if problem is not None or again is None:
        return problem
    what, largest = _apart(twice, again)
    if largest > _SAME:
        return found(
            "validation_fails",
            f"{what} of the same {len(batch.ids)} examples differ each time, by up to "
            f"{largest:.3g} of their size, even with the same random seed: metrics() keeps state "
            "between batches, or uses an unseeded generator",
            fix="Make metrics() depend only on model and batch; estimate statistics once, on "
            "train.",
            severity=Severity.WARNING,
            largest=largest,
        )
    return found(
        "train_mode_in_validation",
        f"{_apart(once, twice)[0]} of the same {len(batch.ids)} examples differ with another "
        "random seed: metrics() or the model draws random numbers in evaluation mode",
        fix="Pass training=self.training to functional dropout; seed sampling if it is intended.",
        severity=Severity.WARNING,
    )


def _measure(
    job: CheckedJob, model: nn.Module, batch: Batch
) -> tuple[Metrics | None, Answer | None]:
    """Run metrics() as validation does, under no_grad, so that gradients it keeps are found."""
    fix = "Call metrics() on such a batch and fix the error; the loop would fail after an epoch."
    try:
        with torch.no_grad(), job.autocast():
            metrics = job.task.metrics(model, batch)
    except Exception as error:
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        text = f"metrics() fails on {len(batch.ids)} validation examples: {what}"
        return None, found("validation_fails", text, fix=fix)
    if tuple(metrics.losses.shape) != (len(batch.ids),):
        return None, found(
            "validation_fails",
            f"metrics() of the Task returns losses of shape {tuple(metrics.losses.shape)} for "
            f"{len(batch.ids)} examples, instead of one per example",
            fix="Return one loss for each example, such as F.cross_entropy(…, reduction='none').",
        )
    return metrics, _unpaired(metrics)


def _measure_again(
    job: CheckedJob, model: nn.Module, batch: Batch
) -> tuple[Metrics | None, Answer | None]:
    """Run metrics() again, in evaluation mode and with another random state."""
    model.eval()
    seed_everything(job.recipe.seed + 1)
    return _measure(job, model, batch)


def _unpaired(metrics: Metrics) -> Answer | None:
    """Check that each sum can be divided by its count, as the loop does after the last batch."""
    for name, total in metrics.sums.items():
        count = metrics.counts.get(name)
        if count is None:
            names = ", ".join(sorted(metrics.counts)) or "none"
            said = f"metrics() returns a sum of {name} but no count; counts: {names}"
        elif not isinstance(total, Tensor) or not isinstance(count, Tensor):
            kinds = f"a {type(total).__name__} and a {type(count).__name__}"
            said = f"sum and count of {name} are {kinds}, not tensors"
        elif count.shape != total.shape and not _divides(total, count):
            shapes = f"{tuple(total.shape)} and {tuple(count.shape)}"
            said = f"sum and count of {name} have shapes {shapes}: they cannot be divided"
        else:
            continue
        return found(
            "validation_fails",
            f"{said}; the first validation would fail",
            fix="Return a sum and a count, two tensors of the same shape, for each metric.",
        )
    return None


def _divides(total: Tensor, count: Tensor) -> bool:
    try:
        _ = total[count > 0] / count[count > 0]
    except (IndexError, RuntimeError):
        return False
    return True


def _last(job: CheckedJob, num: int) -> Batch:
    """Read the last examples of the split, as many as its last batch has."""
    num_rows = len(job.sources.val or ())
    return job.rows(Split.VAL, np.arange(num_rows - num, num_rows))


def _of_one(job: CheckedJob, model: nn.Module) -> str:
    """Return a note if a batch of one would fail, which a split of another size may have."""
    _, problem = _measure(job, model, _last(job, 1))
    return "" if problem is None else f"; a batch of one would fail: {problem.evidence}"


def _rest(job: CheckedJob, model: nn.Module) -> _Pass | None:
    """Validate on the split from its start, as far as time allows."""
    until = time.perf_counter() + min(_LONGEST_S, _SHARE * job.left_s())
    seen = _Pass()
    for batch in job.held_out_batches(Split.VAL):
        metrics, _ = _measure(job, model, batch)
        if metrics is None:
            return None
        seen.add(metrics, len(batch.ids))
        if time.perf_counter() > until:
            break
    return seen


@contextmanager
def _training_layers(model: nn.Module) -> Iterator[set[str]]:
    """Record the dropout and BatchNorm layers that run in training mode in the block."""
    names: set[str] = set()

    def note(name: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, __: Any) -> None:
            if module.training:
                names.add(name or type(module).__name__)

        return module.register_forward_pre_hook(hook)

    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, (BatchNorm, Dropout)) and getattr(module, "p", 1.0) > 0
    ]
    hooks = [note(name, module) for name, module in layers]
    try:
        yield names
    finally:
        for hook in hooks:
            hook.remove()


def broken() -> Example:
    """metrics() that puts the model into training mode."""

    class Trains(SoundPictures):
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            model.train()
            scores: Tensor = model(batch.inputs)
            return Metrics(losses=F.cross_entropy(scores, batch.targets, reduction="none"))

    return Example(task=Trains())


CHECK = Check(
    name="validation_pass",
    reason="A validation that fails or is random is noticed after the first epoch, or never.",
    source="Karpathy 2019, A Recipe for Training Neural Networks; Lightning's sanity check, which "
    "runs two batches but not the last one",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("validation_fails", "train_mode_in_validation", "gradients_in_validation"),
    run=validation_pass,
    broken=broken,
    least_s=1.0,
    needs_loss=True,
)

"""Short trainings on a few examples, with the run's own optimizer and step."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.evidence.one_pass import holding_features, look
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import AugmentConfig, DeviceConfig
from stepladder.data.batch import Batch
from stepladder.measuring.subject import Subject

_RATES = ("p", "drop_prob", "drop_rate", "dropout", "dropout_p", "attn_dropout")
_FEW_WEIGHTS = 1_000_000  # trainable: a step of so few is faster in one thread


@dataclass(frozen=True, kw_only=True)
class Course:
    """The course of a short training.

    Attributes:
        losses: mean loss of each step's examples, before the step; then the final one.
        is_finite: whether all losses and gradients were.
        accuracy: final accuracy on the examples; None: unknown.
        spread: standard deviation of the final outputs over examples, relative to their size;
        None: the model does not return a row for each example.
        num_steps: that were taken.
        is_whole: whether all requested steps were taken, or the goal was reached.
    """

    losses: Sequence[float] = field(default_factory=list)
    is_finite: bool = True
    accuracy: float | None = None
    spread: float | None = None
    num_steps: int = 0
    is_whole: bool = True

    @property
    def first(self) -> float:
        """Loss before the first step."""
        return self.losses[0]

    @property
    def last(self) -> float:
        """Final loss; infinite if it was not finite."""
        last = self.losses[-1]
        return last if self.is_finite and math.isfinite(last) else math.inf

    @property
    def best(self) -> float:
        """The lowest loss."""
        return min((loss for loss in self.losses if math.isfinite(loss)), default=math.inf)


def practise(
    job: CheckedJob,
    batches: Sequence[Batch],
    *,
    lr_factor: float = 1.0,
    num_steps: int,
    budget_s: float,
    goal: float = -math.inf,
    is_plain: bool = True,
    is_enough: Callable[[nn.Module, int], bool] | None = None,
) -> Course:
    """Train a new model repeatedly on the same batches.

    Args:
        batches: augmented, on the device.
        lr_factor: multiplies the recipe's learning rate.
        budget_s: no step begins after this many seconds.
        goal: stop once the mean loss of a step is at most this.
        is_plain: no dropout, weight decay or clipping.
        is_enough: called with the model and the number of steps after each step; True stops.
    """
    changes: dict[str, Any] = {"augment": AugmentConfig()}
    if is_plain:
        changes["optimizer"] = replace(job.recipe.optimizer, weight_decay=0.0, clip_norm=None)
    with short_subject(job, **changes) as subject:
        if is_plain:
            stop_dropping(subject.model)
        course = _train(
            subject,
            batches,
            lr=lr_factor * subject.lr,
            num_steps=num_steps,
            budget_s=budget_s,
            goal=goal,
            is_enough=is_enough,
        )
        return _ended(job, subject.model, batches, course) if course.is_finite else course


@contextmanager
def short_subject(job: CheckedJob, **changes: Any) -> Iterator[Subject]:
    """Yield a model with the run's own optimizer and step, for a few steps: see `short_device`.

    A frozen trunk computes each batch once.

    Args:
        changes: groups of the recipe that are replaced.
    """
    with (
        job.subject(device=short_device(job), **changes) as subject,
        holding_features(job, subject.model),
    ):
        yield subject


def short_device(job: CheckedJob) -> DeviceConfig:
    """Return the device for a few steps: not compiled, one thread for few trainable weights."""
    device = replace(job.recipe.device, compile=False)
    learning = sum(w.numel() for w in job.model().parameters() if w.requires_grad)
    if device.threads == 0 and learning < _FEW_WEIGHTS:
        device = replace(device, threads=1)
    return device


def _train(
    subject: Subject,
    batches: Sequence[Batch],
    *,
    lr: float,
    num_steps: int,
    budget_s: float,
    goal: float,
    is_enough: Callable[[nn.Module, int], bool] | None,
) -> Course:
    ends = time.perf_counter() + budget_s
    step, update = subject.parts.step, subject.parts.update
    losses: list[float] = []
    for idx, batch in zip(range(num_steps), itertools.cycle(batches), strict=False):
        step(batch, step=idx, lr=lr)
        losses.append(step.take_window().loss)
        if not math.isfinite(losses[-1]) or update.read_first_bad() is not None:
            return Course(losses=losses, is_finite=False, num_steps=idx + 1)
        if is_enough is not None and is_enough(subject.model, idx + 1):
            return Course(losses=losses, num_steps=idx + 1)
        if losses[-1] <= goal or time.perf_counter() > ends:
            break
    is_whole = len(losses) == num_steps or losses[-1] <= goal
    return Course(losses=losses, num_steps=len(losses), is_whole=is_whole)


def _ended(job: CheckedJob, model: nn.Module, batches: Sequence[Batch], course: Course) -> Course:
    """Add the results of the trained model."""
    seen = [look(job, model, batch) for batch in batches]
    last = float(torch.cat([one.losses.float() for one in seen]).mean())
    outputs = [one.outputs for one in seen if one.outputs is not None]
    whole = torch.cat(outputs).float() if len(outputs) == len(batches) else None
    return replace(
        course,
        losses=[*course.losses, last],
        is_finite=math.isfinite(last),
        accuracy=_accuracy(whole, batches),
        spread=_spread(whole),
    )


def _accuracy(outputs: Tensor | None, batches: Sequence[Batch]) -> float | None:
    if outputs is None or outputs.dim() != 2 or outputs.shape[1] < 2:
        return None
    targets = [batch.targets for batch in batches]
    if not all(isinstance(t, Tensor) and t.dim() == 1 for t in targets):
        return None
    wanted = torch.cat(targets)
    if wanted.is_floating_point():
        return None
    return float((outputs.argmax(1) == wanted).float().mean())


def _spread(outputs: Tensor | None) -> float | None:
    if outputs is None or len(outputs) < 2:
        return None
    size = float(outputs.abs().mean())
    return float(outputs.std(0).max()) / size if size > 0 else 0.0


def stop_dropping(model: nn.Module) -> None:
    """Set every drop rate of a model to 0."""
    for module in model.modules():
        for name in _RATES:
            value = vars(module).get(name)
            if isinstance(value, float) and 0 < value < 1:
                setattr(module, name, 0.0)

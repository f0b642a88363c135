"""The model can overfit a single batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.one_pass import look
from stepladder.checks.evidence.practice import Course, practise
from stepladder.checks.evidence.sample import take, tensors_of, training_sample
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.optim.table import spec_of
from stepladder.records.findings import Severity

LEAST_EXAMPLES, MOST_EXAMPLES = 8, 16
NUM_STEPS = 150  # a small net needs 30 to 100
BUDGET_S = 8.0  # for each training, and at most a tenth of the time left
LEARNT_FRAC = 0.2  # of the first loss, above the lowest possible one
NOTHING_FRAC = 0.8  # of the first loss: hardly anything was learnt
MEAN_FRAC = 0.95  # of the loss of predicting the mean: a model that uses its inputs is far below
FLOOR_FRAC = 0.02  # above the floor of a double softmax
HIGHER = (1.0, 10.0, 100.0)
LOWER = (0.1, 0.01)
ENOUGH_FRAC = 0.3  # of the distance needed at 100 times the rate


@dataclass(frozen=True)
class Tries:
    """Trainings on one batch, by the factor of the learning rate.

    Attributes:
        courses: in the order in which they were tried.
        least: the lowest loss that labels allow, such as with smoothing; 0 if unknown.
    """

    courses: dict[float, Course]
    least: float

    @property
    def learnt_at(self) -> float | None:
        """The factor at which the batch was learnt, or None."""
        for factor, course in self.courses.items():
            if self.is_learnt(course):
                return factor
        return None

    def is_learnt(self, course: Course) -> bool:
        """Return True if the loss fell to a fifth, above the lowest possible one."""
        first = self.courses[1.0].first
        return course.last - self.least <= LEARNT_FRAC * (first - self.least)

    @property
    def best_frac(self) -> float:
        """The lowest final loss, relative to the first."""
        first = self.courses[1.0].first
        return min(course.last for course in self.courses.values()) / first


def one_batch(job: CheckedJob) -> Batch:
    """Return the batch to overfit, without duplicate inputs."""
    return job.remember("one_batch", lambda: _one_batch(job))


def _one_batch(job: CheckedJob) -> Batch:
    size = min(max(job.recipe.batch.global_batch_size, LEAST_EXAMPLES), MOST_EXAMPLES)
    batch = training_sample(job, size, is_augmented=False)
    return take(batch, _different(batch))


def try_one_batch(job: CheckedJob) -> Tries:
    """Overfit one batch at the recipe's learning rate, and at others while that fails."""
    return job.remember("tries", lambda: _try(job))


def _try(job: CheckedJob) -> Tries:
    batch = one_batch(job)
    courses: dict[float, Course] = {}
    tries = Tries(courses, _least(job, batch))
    factors = [*HIGHER, *_to_usual(job), *LOWER]
    budget_s = min(BUDGET_S, 0.1 * job.left_s())
    for factor in factors:
        first = courses[1.0].first if courses else math.inf
        goal = tries.least + 0.1 * (first - tries.least) if courses else _goal(job, batch, tries)
        courses[factor] = practise(
            job, [batch], lr_factor=factor, num_steps=NUM_STEPS, budget_s=budget_s, goal=goal
        )
        is_slow = not courses[factor].is_whole
        if is_slow or tries.is_learnt(courses[factor]) or _floor(job, tries) is not None:
            break
    return tries


def _to_usual(job: CheckedJob) -> list[float]:
    """Return the factor from a very low learning rate to a usual one."""
    factor = spec_of(job.recipe.optimizer.name).usual_lr / job.lr
    return [factor] if factor > HIGHER[-1] else []


def overfit_one_batch(job: CheckedJob) -> Answer:
    """Train on one batch until its loss is close to the lowest possible one."""
    batch = one_batch(job)
    reason = _why_not(job, batch)
    if reason is not None:
        return not_applicable(reason)
    tries = try_one_batch(job)
    own = tries.courses[1.0]
    num = batch.ids.numel()
    seen = f"{num} training examples"
    numbers: dict[str, Any] = {
        "first": own.first,
        "best_frac": tries.best_frac,
        "num_steps": own.num_steps,
    }
    at = tries.learnt_at
    if at == 1.0:
        return passed(
            f"the loss of {num} examples fell from {own.first:.3g} to {own.last:.3g} in "
            f"{own.num_steps} steps",
            coverage=seen,
            **numbers,
        )
    fault = _floor(job, tries) or _learning_rate(job, tries, at)
    if fault is not None:
        name, evidence, fix, severity = fault
        return found(name, evidence, fix=fix, severity=severity, coverage=seen, **numbers)
    return _not_learnt(job, tries, seen, numbers)


def _why_not(job: CheckedJob, batch: Batch) -> str | None:
    num = batch.ids.numel()
    if num < 2:
        return "the batch has fewer than two different examples"
    model = job.model().eval()
    whole = look(job, model, batch)
    if not bool(torch.isfinite(whole.losses).all()):
        return "the first loss is not finite"
    if float(whole.losses.min()) < 0:
        return "the loss can be negative, so its minimum is unknown"
    half = num // 2
    part = look(job, model, take(batch, torch.arange(half)))
    if not torch.allclose(whole.losses[:half].float(), part.losses.float(), rtol=1e-2, atol=1e-6):
        return "the loss of an example depends on the rest of the batch, as in contrastive losses"
    return None


def _floor(job: CheckedJob, tries: Tries) -> tuple[str, str, str, Severity | None] | None:
    """Detect the lowest loss that a softmax of probabilities allows."""
    num_classes = job.num_classes
    if num_classes is None or num_classes < 2:
        return None
    floor = math.log(1 + (num_classes - 1) / math.e)
    for course in tries.courses.values():
        if course.accuracy is not None and course.accuracy >= 0.99:
            above = course.last / floor - 1
            if -1e-4 <= above < FLOOR_FRAC:
                return (
                    "softmax_before_loss",
                    f"all examples are classified correctly, but the loss stalls at "
                    f"{course.last:.4f}, the minimum for a softmax of probabilities: "
                    f"ln(1 + {num_classes - 1}/e) = {floor:.4f}",
                    "Pass logits to the loss: remove the softmax or sigmoid.",
                    None,
                )
    return None


def _learning_rate(
    job: CheckedJob, tries: Tries, at: float | None
) -> tuple[str, str, str, Severity | None] | None:
    own = tries.courses[1.0]
    if at is None or not own.is_whole:
        return None
    lr = job.lr
    if at < 1:
        rose = not own.is_finite or own.last > own.first
        said = "is not finite" if not own.is_finite else f"ends at {own.last:.3g}"
        return (
            "learning_rate_too_high",
            f"at a learning rate of {lr:.3g} the loss of one batch starts at {own.first:.3g} and "
            f"{said}; at {lr * at:.3g} it falls to {tries.courses[at].last:.3g}",
            f"Use --batch.lr {job.recipe.batch.lr * at:g}.",
            None if rose else Severity.WARNING,
        )
    steps = planned_steps(job)
    way = steps / (at * max(1, tries.courses[at].num_steps))
    if at >= 100 and own.last > NOTHING_FRAC * own.first and way < ENOUGH_FRAC:
        return (
            "learning_rate_too_low",
            f"at a learning rate of {lr:.3g} the loss of one batch falls from {own.first:.3g} to "
            f"{own.last:.3g} in {own.num_steps} steps, at {lr * at:.3g} to "
            f"{tries.courses[at].last:.3g}; the run has {steps:.0f} steps",
            f"Use --batch.lr {job.recipe.batch.lr * 10:g} or more.",
            Severity.WARNING,
        )
    return None


def planned_steps(job: CheckedJob) -> float:
    """Return the maximum number of steps of the run."""
    recipe = job.recipe
    num = max(1, round(len(job.sources.train) * recipe.data.fraction))
    steps = recipe.schedule.max_epochs * math.ceil(num / recipe.batch.global_batch_size)
    return min(steps, recipe.schedule.max_steps or steps)


def _not_learnt(job: CheckedJob, tries: Tries, seen: str, numbers: dict[str, Any]) -> Answer:
    own = tries.courses[1.0]
    at = tries.learnt_at
    said = f"the loss of one batch falls from {own.first:.3g} to {tries.best_frac * own.first:.3g}"
    if at is not None:
        return passed(f"{said}, at {at:g} times the learning rate", coverage=seen, **numbers)
    is_class = job.num_classes is not None
    if not all(course.is_whole for course in tries.courses.values()):
        if tries.best_frac < NOTHING_FRAC:
            return passed(f"{said} in {own.num_steps} steps", coverage=seen, **numbers)
        return not_applicable(f"there was only time for {own.num_steps} steps, which is too few")
    mean_loss = None if is_class else _loss_of_mean(job, one_batch(job))
    if mean_loss is not None and tries.best_frac * own.first > MEAN_FRAC * mean_loss:
        said += f", while predicting the mean of the targets gives {mean_loss:.3g}"
    elif tries.best_frac <= (NOTHING_FRAC if is_class else 0.95):
        return passed(f"{said} and not lower, which is enough", coverage=seen, **numbers)
    return found(
        "cannot_overfit",
        f"{said} at best, at learning rates from {job.lr * min(tries.courses):g} to "
        f"{job.lr * max(tries.courses):g}: the model cannot memorise even a single batch",
        fix="Check that inputs and targets are passed to the loss, and that weights get gradients.",
        coverage=seen,
        **numbers,
    )


def _different(batch: Batch) -> Tensor:
    """Return the rows of a batch without duplicate inputs."""
    tensors = tensors_of(batch.inputs)
    seen: set[bytes] = set()
    rows = []
    for row in range(batch.ids.numel()):
        parts = [t[row].detach().cpu().contiguous() for t in tensors if len(t) > row]
        key = b"".join(part.reshape(-1).view(torch.uint8).numpy().tobytes() for part in parts)
        if key not in seen:
            seen.add(key)
            rows.append(row)
    return torch.tensor(rows)


def _loss_of_mean(job: CheckedJob, batch: Batch) -> float | None:
    """Return the loss of predicting the mean of the targets.

    None if targets do not have the shape of the outputs, or the loss needs more of the model.
    """
    outputs = look(job, job.model().eval(), batch).outputs
    targets = batch.targets
    if outputs is None or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return None
    if outputs.numel() != targets.numel():
        return None
    mean = targets.float().reshape(outputs.shape).mean(0, keepdim=True).expand_as(outputs)
    try:
        losses = look(job, Constant(mean), batch).losses
    except Exception:  # the Task calls parts of the model, or more than its forward
        return None
    return float(losses.float().mean())


class Constant(nn.Module):
    """A model with constant outputs."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: object, **__: object) -> Tensor:
        """Return the outputs."""
        return self.answer


def _goal(job: CheckedJob, batch: Batch, tries: Tries) -> float:
    first = job.mean_loss(job.model().eval(), batch)
    return tries.least + 0.1 * (first - tries.least)


def _least(job: CheckedJob, batch: Batch) -> float:
    """Return the lowest mean loss that the targets allow: the entropy of soft labels."""
    call, num_classes = job.loss_call, job.num_classes
    if call is None or num_classes is None or num_classes < 2:
        return 0.0
    targets = batch.targets
    least = 0.0
    if isinstance(targets, Tensor) and targets.is_floating_point() and targets.dim() == 2:
        least = float(torch.special.entr(targets.double()).sum(1).mean())
    smoothing = float(call.options.get("label_smoothing") or 0.0)
    if 0 < smoothing < 1 and least == 0.0:
        rest = smoothing / num_classes
        top = 1 - smoothing + rest
        least = -top * math.log(top) - (num_classes - 1) * rest * math.log(rest)
    return least


def broken() -> Example:
    """Scores that are squeezed into ±0.05, so that no weight can change the loss much."""

    class Squeezed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.05 * torch.tanh(x)

    class Capped(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(super().build_model(recipe), Squeezed())

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    return Example(task=Capped())


CHECK = Check(
    name="overfit_one_batch",
    reason="A model that cannot overfit a few examples will not learn the rest: something is "
    "broken between inputs, loss and weights.",
    source="Karpathy 2019, A Recipe for Training Neural Networks; the loss floor of a second "
    "softmax is ln(1 + (C - 1)/e), as scores then differ by 1 at most",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=(
        "cannot_overfit",
        "softmax_before_loss",
        "learning_rate_too_low",
        "learning_rate_too_high",
    ),
    run=overfit_one_batch,
    broken=broken,
    least_s=2.0,
    needs_loss=True,
)

"""The learning rate fits the size of updates and the loss in a short training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.practice import Course, practise, short_subject
from stepladder.checks.examples import Example, sound_recipe
from stepladder.checks.job import CheckedJob
from stepladder.checks.optimisation.overfit_one_batch import planned_steps
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import BatchConfig, OptimizerConfig
from stepladder.data.batch import Batch
from stepladder.records.findings import Severity

NUM_BATCHES = 8
NUM_STEPS = 60
RATIO_STEPS = 10
BUDGET_S = 5.0  # for the training at the recipe's rate; as much for a lower one
LARGE_RATIO = 0.1  # |change| / |weights| of a step; about 0.001 is usual
SAFE_RATIO = 1e-3
LOWER = (0.1, 0.01, 0.001)  # times the rate, to test whether it then learns
STAYED_FRAC = 0.98  # of the first loss
SMALL_WAY = 0.01  # of their size: how far weights can move in the whole run
ROSE = 3.0  # times the first loss
FELL_FRAC = 0.9  # of the first loss: a rate ten times lower learns by then


@dataclass(frozen=True, kw_only=True)
class _Ratio:
    """The size of updates relative to the weights, over the measured steps.

    Attributes:
        median: of the matrices that change.
        largest: of the matrix that changes most.
    """

    median: float
    largest: float


def learning_rate(job: CheckedJob) -> Answer:
    """Measure the relative size of updates; if it is large, try lower rates."""
    batches = [job.augmented(batch) for batch in job.train_batches(NUM_BATCHES)]
    ratio = _measure(job, batches)
    if ratio is None:
        return not_applicable("no weight matrix or convolution kernel with nonzero values changes")
    steps = planned_steps(job)
    way = ratio.largest * steps
    numbers: dict[str, Any] = {"ratio": ratio.median, "num_steps": steps}
    said = f"one step changes the weights by {ratio.median:.1g} times their norm"
    train = partial(practise, job, batches, num_steps=NUM_STEPS, budget_s=_budget_s(job))
    own = train(is_plain=False)
    numbers |= {"first": own.first, "last": own.last}
    if way < SMALL_WAY and own.is_finite and own.last > STAYED_FRAC * own.first:
        factor = min(1e4, 0.1 / max(way, 1e-9))
        return found(
            "learning_rate_too_low",
            f"{said}, and all {steps:.0f} steps of the run change them by at most {way:.1g} times "
            f"their norm; in {own.num_steps} steps the loss changes from {own.first:.4g} to "
            f"{own.last:.4g}",
            fix=f"Try --batch.lr {job.recipe.batch.lr * factor:.1g}.",
            severity=Severity.WARNING,
            **numbers,
        )
    is_safe = ratio.median < SAFE_RATIO and own.last <= ROSE * own.first
    if own.is_finite and (own.last <= FELL_FRAC * own.first or is_safe):
        return passed(
            f"{said}; in {own.num_steps} steps the loss changes from {own.first:.3g} to "
            f"{own.last:.3g}",
            **numbers,
        )
    return _against_lower(job, own, train, said, numbers)


def _budget_s(job: CheckedJob) -> float:
    return min(BUDGET_S, 0.15 * job.left_s())


def _against_lower(
    job: CheckedJob,
    own: Course,
    train: partial[Course],
    said: str,
    numbers: dict[str, Any],
) -> Answer:
    """Report the rate if a tenth or a hundredth of it learns clearly more."""
    if job.recipe.schedule.warmup_steps and own.is_finite:
        return passed(
            f"{said}; the run has a learning-rate warm-up, so the loss after a few steps is not "
            "compared",
            **numbers,
        )
    for factor in LOWER:
        if job.left_s() < BUDGET_S:
            break
        lower = train(lr_factor=factor, is_plain=False)
        if not (lower.is_finite and lower.last <= FELL_FRAC * min(own.first, own.last)):
            continue
        is_large = numbers["ratio"] > LARGE_RATIO
        rose = not own.is_finite or own.last > ROSE * own.first
        end = f"{own.last:.3g}" if own.is_finite else "NaN or infinity"
        if rose or (is_large and own.last > own.first) or lower.last < 0.5 * own.last:
            return found(
                "learning_rate_too_high",
                f"{said}; in {own.num_steps} steps the loss changes from {own.first:.3g} to {end}, "
                f"and to {lower.last:.3g} with {factor:g} times the learning rate",
                fix=f"Use --batch.lr {job.recipe.batch.lr * factor:g}.",
                severity=None if rose else Severity.WARNING,
                **numbers,
            )
    if not own.is_finite:
        return not_applicable(
            f"the loss or its gradient is not finite after {own.num_steps} steps, and a lower "
            "learning rate does not fix it"
        )
    return passed(
        f"{said}; in {own.num_steps} steps the loss changes from {own.first:.3g} to "
        f"{own.last:.3g}, and no lower learning rate is clearly better",
        **numbers,
    )


def _measure(job: CheckedJob, batches: list[Batch]) -> _Ratio | None:
    with short_subject(job) as subject:
        matrices = [
            weight
            for weight in subject.learning()
            if weight.dim() >= 2 and not isinstance(weight, nn.UninitializedParameter)
        ]
        sizes = [_norm(weight) for weight in matrices]
        matrices = [w for w, size in zip(matrices, sizes, strict=True) if size > 0]
        if not matrices:
            return None
        ratios: list[list[float]] = []
        step = subject.parts.step
        for idx in range(RATIO_STEPS):
            before = [weight.detach().clone() for weight in matrices]
            step(batches[idx % len(batches)], step=idx, lr=subject.lr)
            if subject.parts.update.read_first_bad() is not None:
                break
            moved = [
                _norm(weight - old) / max(_norm(old), 1e-12)
                for weight, old in zip(matrices, before, strict=True)
            ]
            ratios.append(moved)
        if not ratios:
            return _Ratio(median=math.inf, largest=math.inf)
        late = torch.tensor(ratios[len(ratios) // 2 :]).mean(
            0
        )  # Adam's first steps are the largest
        moving = late[late > 0]
        if not len(moving):
            return None
        return _Ratio(median=float(moving.median()), largest=float(moving.max()))


def _norm(weight: Tensor) -> float:
    return float(weight.detach().double().norm())


def broken() -> Example:
    """A learning rate of 30 for SGD with momentum."""
    batch = BatchConfig(global_batch_size=16, lr=30.0)
    optimizer = OptimizerConfig(name=OptimizerName.SGD)
    return Example(recipe=sound_recipe(batch=batch, optimizer=optimizer))


CHECK = Check(
    name="learning_rate",
    reason="With too high a rate training diverges; with too low a rate the weights hardly change "
    "in the whole run.",
    source="Karpathy 2015, CS231n: updates are about 1e-3 of the weights; TheDeepChecker (Ben "
    "Braiek and Khomh 2023, TOSEM): 1e-4 to 1e-1",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("learning_rate_too_high", "learning_rate_too_low"),
    run=learning_rate,
    broken=broken,
    least_s=3.0,
    needs_loss=True,
)

"""Compute the learning rate from the batch size and the step, as pure functions."""

from __future__ import annotations

import math
from typing import assert_never

from stepladder.config.choices import LrRule, ScheduleKind
from stepladder.config.recipe import BatchConfig, ScheduleConfig


def round_lr(lr: float) -> float:
    """Return a learning rate with three significant digits, as it is printed and typed."""
    return float(f"{lr:.3g}")


def base_lr(batch: BatchConfig, *, is_second_stage: bool = False) -> float:
    """Scale the learning rate from base_batch_size to global_batch_size.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", 2.1 (linear), arXiv:1706.02677;
    Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", 5
    (square root), arXiv:1404.5997.
    """
    chosen = batch.lr_all if is_second_stage else batch.lr
    ratio = batch.global_batch_size / batch.base_batch_size
    match batch.lr_rule:
        case LrRule.NONE | LrRule.ADASCALE:  # which multiplies it by a measured gain
            return chosen
        case LrRule.LINEAR:
            return chosen * ratio
        case LrRule.SQRT:
            return chosen * math.sqrt(ratio)
        case _:
            assert_never(batch.lr_rule)


def horizon_steps(schedule: ScheduleConfig, *, steps_per_epoch: int) -> int:
    """Return the step at which cosine reaches its minimum: horizon_epochs, or the planned end."""
    if schedule.horizon_epochs is not None:
        return schedule.horizon_epochs * steps_per_epoch
    planned = schedule.max_epochs * steps_per_epoch
    return planned if schedule.max_steps is None else min(planned, schedule.max_steps)


def lr_at(step: float, *, base: float, schedule: ScheduleConfig, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0; it may be a fraction.

    Warm-up: base x (step + 1) / warmup_steps. Then constant, or

        base x (f + (1 - f) x (1 + cos(pi x p)) / 2),  p = (step - warmup) / (horizon - warmup),

    with f = min_lr_frac; it stays at base x f after the horizon.

    Source: Loshchilov and Hutter 2017, "SGDR", eq. 5, arXiv:1608.03983 (one period).
    """
    warmup = schedule.warmup_steps
    if step < warmup:
        return base * (step + 1) / warmup
    match schedule.kind:
        case ScheduleKind.CONSTANT:
            return base
        case ScheduleKind.COSINE:
            horizon = horizon_steps(schedule, steps_per_epoch=steps_per_epoch)
            progress = min(1.0, (step - warmup) / max(1, horizon - warmup))
            floor = schedule.min_lr_frac
            return base * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)
        case _:
            assert_never(schedule.kind)

"""Faults in schedules that the learning rates themselves show, whoever has set them."""

from __future__ import annotations

import re
from itertools import pairwise
from math import isclose, isfinite

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.watching.contract import Found
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import OptimizerSeen, ScheduleSeen

_LONG = 0.4  # of the steps
_MIN_STEPS = 20
_BELOW = 0.5  # of the rate that a warm-up leads to
_NEAR = 0.02  # by which a number of steps may differ from those that were taken
_MIN_METRICS = 5
_FALLS = 0.25  # of the calls: more is not a metric that rises
_SCORES = re.compile(
    r"(?<![a-z])(acc|accuracy|score|f1|auc|auroc|iou|miou|map|bleu|r2|dice|precision|recall|"
    r"psnr|ssim)(?![a-z])",
    re.IGNORECASE,
)


def more_of(one: ScheduleSeen, seen: Seen) -> Found | None:
    """Check one scheduler by the learning rates that were used, and by its metrics."""
    return _waits_for_a_fall(one, seen) or _still_rising(one, seen)


def spent(seen: Seen) -> Found | None:
    """Find a learning rate that is practically 0 for much of the training."""
    if any(one.kind == "ReduceLROnPlateau" for one in seen.schedules):
        return None
    for optimizer in seen.optimizers:
        found = _spent(optimizer, seen)
        if found is not None:
            return found
    return None


def _spent(one: OptimizerSeen, seen: Seen) -> Found | None:
    rates = one.schedule
    if rates.num < one.num_steps or one.num_steps < max(_MIN_STEPS, 0.9 * seen.num_steps):
        return None
    highest, since = rates.highest, rates.used_until + 1
    share = 1 - since / one.num_steps
    if share < _LONG or highest <= 0:
        return None
    plan = next((s for s in seen.schedules if s.num_stepped), None)
    return Found(
        evidence=f"the learning rate of {one.kind} falls from {highest:.3g} to less than a "
        f"thousandth of that by step {since}: the last {100 * share:.0f} % of {one.num_steps} "
        "steps change next to nothing",
        fix="Let the schedule end with the training: change it once per epoch if it counts "
        "epochs, or let it count all optimizer steps.",
        where=(plan.stepped_at or plan.built_at) if plan is not None else one.stepped_at,
        numbers={"highest_rate": highest, "spent_at_step": since, "num_steps": one.num_steps},
    )


def _still_rising(one: ScheduleSeen, seen: Seen) -> Found | None:
    """Find a schedule that was in its warm-up until the end."""
    steps = seen.num_steps
    rates = next((o.schedule for o in seen.optimizers if o.num_steps >= 0.9 * steps), None)
    if rates is None or not seen.is_over or seen.was_cut or steps < _MIN_STEPS:
        return None
    is_rising = rates.num >= 0.9 * steps and not rates.has_fallen and rates.last > rates.first
    peak = one.peak_rate or one.base_rate or 0.0
    if not is_rising or rates.last >= _BELOW * peak or one.num_stepped == 0:
        return None
    is_by_epoch = 4 * one.num_stepped <= steps
    is_planned = one.kind in ("OneCycleLR", "CyclicLR") or is_by_epoch
    how = "once per epoch or less" if is_by_epoch else "with the optimizer"
    numbers: dict[str, Json] = {"num_stepped": one.num_stepped, "num_steps": steps}
    return Found(
        evidence=f"the scheduler {one.kind} took {one.num_stepped} steps in {steps} steps of the "
        f"optimizer, {how}, and was in its warm-up until the end: the learning rate rose to "
        f"{rates.last:.2g}, and never reached {peak:.2g}",
        fix="Call scheduler.step() after each optimizer.step(), if the schedule counts these."
        if is_by_epoch
        else "Make the schedule for the number of steps that the training takes.",
        where=one.stepped_at or one.built_at,
        numbers=numbers,
        severity=None if is_planned else Severity.INFO,
    )


def counted_steps(one: ScheduleSeen, steps: int) -> int | None:
    """Return the end of a schedule in optimizer steps, if its function has that number."""
    near = (num for num in one.counts if abs(num - steps) <= max(1, _NEAR * steps))
    return next(near, None) if steps >= _MIN_STEPS else None


def _waits_for_a_fall(one: ScheduleSeen, seen: Seen) -> Found | None:
    """Find a scheduler in mode "min" that receives a score, which rises."""
    values = one.metrics
    is_min = one.kind == "ReduceLROnPlateau" and not one.is_for_max
    was_cut = (one.least_rate or 0.0) < (one.base_rate or 0.0)
    if not is_min or not was_cut or len(values) < _MIN_METRICS or not all(map(isfinite, values)):
        return None
    falls = sum(b < a for a, b in pairwise(values))  # without learning, it stays where it is
    if falls > _FALLS * (len(values) - 1) or values[-1] <= values[0]:
        return None
    if not is_share_of_examples(values, seen) and not _SCORES.search(one.metric_code):
        return None
    return Found(
        evidence=f'{one.kind} with mode="min" received a score that rises, from {values[0]:.3g} '
        f"to {values[-1]:.3g} in {len(values)} calls, and therefore cut the learning rate from "
        f"{one.base_rate or 0:g} to {one.least_rate or 0:.2g}",
        fix='Use mode="max" for a score such as the accuracy.',
        where=one.stepped_at or one.built_at,
        numbers={"num_calls": len(values), "first": values[0], "last": values[-1]},
    )


def is_share_of_examples(values: list[float], seen: Seen) -> bool:
    """Return whether all values are numbers of examples over the size of a dataset, or percent."""
    for size in {one.num_examples for one in seen.loaders if one.num_examples}:
        for whole in (1.0, 100.0):
            counts = [value * size / whole for value in values]
            is_whole = all(isclose(c, round(c), abs_tol=1e-4) and 0 <= c <= size for c in counts)
            if is_whole and len(set(values)) >= 3 and size <= 100_000:
                return True
    return False


def is_loss(one: ScheduleSeen) -> bool:
    """Return whether the script passes a loss to a scheduler, by name."""
    return "loss" in one.metric_code.lower() and not _SCORES.search(one.metric_code)

"""Faults in the training step: schedule, precision, accumulation, initialisation."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from math import isfinite
from statistics import median, median_high

from stepladder.checks.evidence.growth import NUM_CALLS, is_growing, norms_in_words
from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.records.watch import Clearing
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.faults.steps import schedules
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import OptimizerSeen, ScheduleSeen, WindowSeen

_NEARLY_ALL = 0.9  # of the steps
_MIN_STEPS = 30
_MIN_METRICS = 4
_FALLEN = 0.8  # of the first value of a metric
_FALLEN_LOSS = 0.98  # of the first value of what the script calls a loss
_ONE_CALL = frozenset(  # torch's optimizers that call a closure once
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Rprop"]
)
_MIN_IDLE = 6
_IDLE = 0.3
_SHORT_IDLE = 8  # in a row, if a schedule counts rounds with several calls per step
_OFTEN = 0.5  # of the steps
_LARGE_SCALE = 5.0  # root mean square times sqrt(fan in): 0.6 is torch's default, 1.4 is He's
_SMALL_SCALE = 0.02
_TINY_BATCH = 4
_MIN_LOST = 8  # times that the state of an optimizer was lost, if epochs are unknown
_MIN_LOST_EPOCHS = 3  # the same if they are known
_MIN_CUT = 3  # schedules that started again too early
_TAIL = 0.05  # of all gradients: less is lost with drop_last=True, too
_MIN_LOOKED = 3  # inspected steps before a missing gradient counts
_FIX = "Call optimizer.zero_grad() once per step, before backward."


def missing_zero_grad(seen: Seen) -> Answer:
    """Follows a gradient from step to step: the same tensor, changed only by backward."""
    probed = seen.clearing
    stepped = [o for o in seen.optimizers if o.num_uncleared + o.num_cleared > 0]
    for one in stepped:
        share = one.num_uncleared / (one.num_uncleared + one.num_cleared)
        if one.is_uncleared_proven and one.num_uncleared >= _MIN_LOOKED and share >= 0.5:
            return Found(
                evidence=f"at {one.num_uncleared} of {one.num_uncleared + one.num_cleared} "
                f"observed steps of {one.kind}, the gradients still contained those of the "
                f"previous step, bit for bit, and backward added to them{_measured(probed)}",
                fix=_FIX,
                where=one.stepped_at,
                numbers={
                    "num_uncleared": one.num_uncleared,
                    "num_cleared": one.num_cleared,
                    **({"norms": [*probed.norms]} if probed is not None and probed.norms else {}),
                },
            )
    found = None if probed is None else _proven(probed)
    if found is not None:
        return found
    if not stepped and probed is None:
        return Unseen("fewer than two optimizer steps were seen")
    if not stepped and probed is not None:
        told = f"between {probed.num_looked - probed.num_uncleared} of {probed.num_looked} steps"
        return Sound(f"gradients were cleared or changed {told}{_measured(probed)}")
    total = sum(one.num_cleared for one in stepped)
    text = f"gradients were cleared before {total} of the observed steps"
    return Sound(f"{text}{_measured(probed)}")


def _proven(probed: Clearing) -> Found | None:
    """Evaluate what the probe saw of every weight, if passive watching proved nothing."""
    is_seen_often = probed.num_uncleared >= _MIN_LOOKED
    is_proven = is_growing(probed.norms) if probed.norms else is_seen_often
    if not probed.uncleared or not is_proven:
        return None
    num, of = len(probed.uncleared), probed.num_weights
    which = "" if num == of else f" of {num} of {of} weights, such as {probed.uncleared[0]},"
    is_certain = num == of and probed.num_uncleared >= 2
    return Found(
        evidence=f"between {probed.num_uncleared} of {probed.num_looked} inspected pairs of steps "
        f"of {probed.optimizer}, the gradients{which} were not cleared, and backward added to "
        f"them{_measured(probed)}",
        fix=_FIX if num == of else "Clear the gradients of all weights: optimizer.zero_grad().",
        where=probed.stepped_at,
        numbers={
            "num_uncleared": probed.num_uncleared,
            "num_looked": probed.num_looked,
            "num_weights": num,
            "norms": [*probed.norms],
        },
        severity=None if is_certain else Severity.WARNING,  # once may be intended
    )


def _measured(probed: Clearing | None) -> str:
    """Return the numbers measured by the probe, as the end of a sentence."""
    if probed is None or not probed.norms:
        return ""
    loss = "" if probed.loss is not None else " of a weighted mean of the outputs"
    return (
        f"; on a copy with frozen weights, the gradient norm of one batch{loss} goes "
        f"{norms_in_words(probed.norms)} in {NUM_CALLS} calls"
    )


def zero_grad_before_step(seen: Seen) -> Answer:
    """Checks for gradients that are cleared between a backward and its step."""
    looked = [o for o in seen.optimizers if o.num_looked]
    if not looked:
        return Unseen("no optimizer step was seen")
    for one in looked:
        if one.num_looked >= _MIN_LOOKED and one.num_cleared_late == one.num_looked:
            return Found(
                evidence=f"at {one.num_looked} of {one.num_looked} inspected steps, {one.kind} had "
                "no gradients: they were cleared between backward and the step",
                fix="Call zero_grad() before backward or after the step.",
                where=one.cleared_late_at or one.stepped_at,
                numbers={"num_steps": one.num_steps},
            )
    for one in looked:
        found = _lost_between(one, seen) or _lost_at_ends(one, seen)
        if found is not None:
            return found
    if all(one.num_empty == one.num_looked for one in looked):
        return Unseen("no step with a gradient was inspected")
    return Sound("gradients were present at the steps")


def optimizer_recreated(seen: Seen) -> Answer:
    """Counts how often a line creates an optimizer for the same weights, without its state."""
    stepped = [o for o in seen.optimizers if o.num_steps]
    if not stepped:
        return Unseen("no optimizer step was seen")
    epochs = _num_epochs(seen)
    for one in stepped:
        num = sum(one.lost_after.values())
        in_steps = one.lost_after.get(1, 0)
        is_each_step = in_steps >= _MIN_LOST and in_steps >= _NEARLY_ALL * (one.num_steps - 1)
        least = max(_MIN_LOST_EPOCHS, (epochs - 1) / 2) if epochs else _MIN_LOST
        if one.is_resumed or not (is_each_step or num >= least):
            continue
        usual = max(one.lost_after, key=lambda steps: one.lost_after[steps])
        often = "in every step" if is_each_step else f"usually after {usual} steps"
        return Found(
            evidence=f"{one.kind} was created {num + 1} times for the same weights in "
            f"{one.num_steps} steps, {often}: each time its state, such as the momentum of "
            "earlier gradients, was lost",
            fix="Create the optimizer once, before the loop over epochs and batches.",
            where=one.built_at,
            numbers={
                "num_created": num + 1,
                "num_state_lost": num,
                "num_steps": one.num_steps,
                "steps_between": usual,
            },
            severity=None if is_each_step else Severity.WARNING,
        )
    return Sound("every optimizer kept its state from step to step")


def _num_epochs(seen: Seen) -> int:
    """Return the largest number of training passes over one dataset."""
    passes: dict[int, int] = {}
    for loader in seen.loaders:
        passes[loader.dataset_id] = passes.get(loader.dataset_id, 0) + len(loader.training)
    return max(passes.values(), default=0)


def _lost_between(one: OptimizerSeen, seen: Seen) -> Found | None:
    """Find gradients that are cleared between the backwards of one step."""
    if one.has_closure and one.kind not in _ONE_CALL:
        return None
    known = [w for w in one.windows if w.is_checked and (w.num_batches or not w.num_lost)]
    lost, total = [w for w in known if _is_lost(w)], len(known)
    if len(lost) < _MIN_LOOKED or len(lost) < _OFTEN * total:
        return None
    counts = Counter((w.num_lost, w.num_backwards) for w in lost)
    (num, of), _ = counts.most_common(1)[0]
    is_alone = sum(o.num_steps > 0 for o in seen.optimizers) == 1
    is_certain = is_alone and len(lost) == total
    return Found(
        evidence=f"gradients were cleared between the backwards of a step at {len(lost)} of "
        f"{total} followed steps of {one.kind}: of {of} backwards per step, {num} were cleared "
        f"before it, so {num} of {of} gradients never reach a step",
        fix="Clear the gradients once per step, right after optimizer.step(), not before each "
        "backward.",
        where=one.cleared_late_at or one.stepped_at,
        numbers={"num_backwards": of, "num_lost": num, "num_followed": total},
        severity=None if is_certain else Severity.WARNING,
    )


def _is_lost(window: WindowSeen) -> bool:
    """Return whether gradients of some of a step's batches were lost, proven by their values."""
    is_each_of_a_batch = (window.num_batches or 0) >= window.num_backwards >= 2
    is_proven = window.is_checked and not window.is_own and not window.has_tail
    return window.num_lost > 0 and is_each_of_a_batch and is_proven


def _lost_at_ends(one: OptimizerSeen, seen: Seen) -> Found | None:
    """Find the last batches of epochs that are accumulated, but never stepped."""
    usual, times = max(one.backwards.items(), key=lambda item: item[1], default=(1, 0))
    if len(one.tails) < 2 or usual < 2 or times < _OFTEN * one.num_steps:
        return None
    share = sum(one.tails) / max(1, seen.num_backwards)
    return Found(
        evidence=f"the last {median_high(one.tails)} backwards of {len(one.tails)} epochs were "
        f"cleared before {one.kind} stepped, as a step accumulates {usual}: "
        f"{100 * share:.2g} % of all gradients never reach a step",
        fix="Step after the last batch of an epoch, too, or choose a number of batches that the "
        "accumulation divides.",
        where=one.stepped_at,
        numbers={"num_lost": sum(one.tails), "share": share},
        severity=Severity.WARNING if share >= _TAIL else Severity.INFO,
    )


def schedule_misused(seen: Seen) -> Answer:
    """Compares a scheduler's steps with its horizon, steps and epochs, and reads learning rates."""
    for one in seen.schedules:
        found = _rebuilt(one) if one.num_rebuilt else _misuse(one, seen)
        if found is not None:
            return found
    found = schedules.spent(seen)
    if found is not None:
        return found
    if not seen.schedules:
        return Unseen("no scheduler was created")
    return Sound("schedulers step in line with their horizon")


def _rebuilt(one: ScheduleSeen) -> Found | None:
    if one.num_cut < _MIN_CUT or one.num_cut < _NEARLY_ALL * one.num_rebuilt:
        return None
    total = one.horizon or one.period
    of = f" of its {total}" if total else ""
    return Found(
        evidence=f"the scheduler {one.kind} was created {one.num_rebuilt + 1} times for the same "
        f"optimizer and took at most {one.longest_life} step{'s' * (one.longest_life != 1)}{of} "
        "before the next one started from the beginning: the learning rate does not follow the "
        "schedule",
        fix="Create the scheduler once, before the loop over epochs and batches.",
        where=one.built_at,
        numbers={
            "num_created": one.num_rebuilt + 1,
            "num_cut": one.num_cut,
            "longest_life": one.longest_life,
        },
    )


def _misuse(one: ScheduleSeen, seen: Seen) -> Found | None:  # noqa: PLR0911  (one return each)
    where, steps = one.stepped_at or one.built_at, seen.num_steps
    epochs = max((len(loader.training) for loader in seen.loaders), default=0)
    numbers: dict[str, Json] = {"num_stepped": one.num_stepped, "num_steps": steps}
    if one.is_early:
        return Found(
            evidence=f"the scheduler {one.kind} took a step before the optimizer's first step, "
            "so the first learning rate of the schedule was never used",
            fix="Call scheduler.step() after optimizer.step().",
            where=where,
            numbers=numbers,
        )
    is_often = one.num_idle >= _MIN_IDLE and one.num_idle > _IDLE * one.num_stepped
    is_own_unit = (one.horizon or 0) >= one.num_stepped and one.longest_idle <= _SHORT_IDLE
    if is_often and not is_own_unit and seen.world_size == 1:  # some step it once per process
        return Found(
            evidence=f"{one.kind} stepped {one.num_idle} of {one.num_stepped} times without a step "
            f"of its optimizer in between: the learning rate went from {one.base_rate or 0:g} to "
            f"{one.least_rate or 0:.2g}, and the values in between were never used",
            fix="Create it for the optimizer that steps, and call scheduler.step() once per epoch "
            "or once after each optimizer.step().",
            where=where,
            numbers={**numbers, "num_idle": one.num_idle},
        )
    if one.num_stepped == 0 and one.is_optional:
        return None
    if one.num_stepped == 0:
        has_time = epochs >= 2 or steps >= (one.horizon or 100)
        if steps >= 20 and has_time and seen.is_over:
            return Found(
                evidence=f"the scheduler {one.kind} took no step in {steps} steps of the "
                f"optimizer: the learning rate stayed at {one.base_rate or 0:g}",
                fix="Call scheduler.step() once per epoch or once per step, as the schedule "
                "requires.",
                where=one.built_at,
                numbers=numbers,
            )
        return None
    if _waits_for_a_rise(one) and not schedules.is_share_of_examples(one.metrics, seen):
        return Found(
            evidence=f'{one.kind} with mode="max" received a value that falls, from '
            f"{one.metrics[0]:.3g} to {one.metrics[-1]:.3g} in {len(one.metrics)} calls, and "
            f"therefore cut the learning rate from {one.base_rate or 0:g} to "
            f"{one.least_rate or 0:.2g}",
            fix='Use mode="min" for a loss.',
            where=where,
            numbers=numbers,
        )
    is_every_step = one.num_stepped >= 0.9 * steps > 0
    if is_every_step and epochs >= 2 and _is_spent_early(one, steps):
        return Found(
            evidence=f"the scheduler {one.kind} took {one.num_stepped} steps, one per step of "
            f"the optimizer, but its schedule has only {one.horizon or one.period} (learning "
            f"rate {one.base_rate or 0:g} to {one.least_rate or 0:.2g})",
            fix="Call scheduler.step() once per epoch, or give the scheduler the number of "
            "optimizer steps.",
            where=where,
            numbers=numbers,
        )
    horizon = one.horizon or schedules.counted_steps(one, steps) or 0
    is_by_epoch = epochs >= 2 and one.num_stepped <= epochs + 1
    if seen.is_over and is_by_epoch and 0.8 * steps <= horizon and one.num_stepped < horizon / 3:
        return Found(
            evidence=f"the scheduler {one.kind} took {one.num_stepped} steps, one per epoch, but "
            f"its schedule of {horizon} steps counts optimizer steps (there were {steps}), so "
            "the learning rate hardly changed",
            fix="Call scheduler.step() after each optimizer.step().",
            where=where,
            numbers=numbers,
        )
    return schedules.more_of(one, seen)


def _waits_for_a_rise(one: ScheduleSeen) -> bool:
    """Return whether a scheduler in mode "max" waits for a falling metric to rise."""
    first, *later = one.metrics or [0.0]
    if not one.is_for_max or len(later) < _MIN_METRICS or not all(map(isfinite, one.metrics)):
        return False
    limit = _FALLEN_LOSS if schedules.is_loss(one) else _FALLEN
    falls = sum(b < a for a, b in pairwise(one.metrics))
    was_cut = (one.least_rate or math.inf) < (one.base_rate or 0.0)
    return was_cut and falls >= 0.8 * len(later) and one.metrics[-1] < limit * first


def _is_spent_early(one: ScheduleSeen, steps: int) -> bool:
    """Return whether a schedule that steps with the optimizer ended long before training did."""
    if one.kind == "CosineAnnealingLR" and one.horizon:
        return one.num_stepped > 1.5 * one.horizon
    has_fallen = (
        one.base_rate is not None
        and one.least_rate is not None
        and one.least_rate < 1e-3 * one.base_rate
    )
    if one.kind in ("StepLR", "MultiStepLR", "ExponentialLR"):
        return (
            has_fallen
            and one.least_rate is not None
            and one.period is not None
            and (one.period * 4 < steps and (one.gamma or 0.1) < 0.99)
        )
    return False


def mixed_precision_misused(seen: Seen) -> Answer:  # noqa: PLR0911  (one return per misuse)
    """Checks for float16 without a GradScaler, scaled gradients in use, and skipped steps."""
    one = seen.precision
    outside = sum(o.num_outside_scaler for o in seen.optimizers)
    if not one.num_half and not one.num_scaled:
        return Unseen("no float16 autocast and no GradScaler")
    if one.num_clipped_scaled >= 3:
        return Found(
            evidence=f"gradients were clipped {one.num_clipped_scaled} times while the GradScaler "
            "had them multiplied by its scale, so they were cut far too much",
            fix="Call scaler.unscale_(optimizer) before clipping.",
            where=one.clipped_scaled_at,
            numbers={"num_clipped": one.num_clipped_scaled},
        )
    if outside >= 3:
        return Found(
            evidence=f"{outside} optimizer steps used gradients that were still multiplied by "
            "the scale of the GradScaler, so these steps were far too large",
            fix="Call scaler.step(optimizer) and scaler.update(), not optimizer.step().",
            where=seen.optimizers[0].stepped_at if seen.optimizers else None,
        )
    if one.num_half >= 10 and not one.num_scaled and seen.num_steps >= 10:
        return Found(
            evidence=f"{one.num_half} forward passes ran in float16 without a GradScaler: small "
            "gradients underflow to zero",
            fix="Use torch.amp.GradScaler, or bfloat16, which does not need one.",
            where=one.half_at,
        )
    if one.scaler_steps >= 50 and one.num_skipped > 0.2 * one.scaler_steps:
        return Found(
            evidence=f"the GradScaler skipped {one.num_skipped} of {one.scaler_steps} optimizer "
            "steps, because gradients were NaN or infinite",
            fix="Use bfloat16, or find the operation that overflows in float16.",
            where=one.half_at,
        )
    if one.scaler_steps >= 10 and not one.num_updates:
        return Found(
            evidence="the GradScaler never adapted its scale, because its update() was not "
            "called: gradients may overflow or become 0",
            fix="Call scaler.update() after scaler.step().",
            where=one.half_at,
        )
    return Sound("float16 passes are scaled")


def accumulation_unscaled(seen: Seen) -> Answer:  # noqa: C901, PLR0911  (one return per case)
    """Counts backwards and batches per step, and reads what the loss was divided by."""
    stepped = [o for o in seen.optimizers if o.num_steps]
    if not stepped:
        return Unseen("no optimizer step was seen")
    one = max(stepped, key=lambda o: o.num_steps)
    usual, times = max(one.backwards.items(), key=lambda item: item[1], default=(1, 0))
    if usual < 2 or times < 0.5 * one.num_steps or one.num_steps < 3:
        return Unseen("each step follows a single backward")
    if one.has_closure and one.kind not in _ONE_CALL:
        return Unseen("the optimizer calls backward itself")
    if _lost_between(one, seen) is not None:
        return Unseen("gradients are cleared between the backwards of a step")
    if any(by.cause.kind in ("late", "cleared") for by in one.causes):
        return Unseen("some backwards have gradients that no step uses")
    if len(stepped) > 1:
        return Unseen("several optimizers: a backward may belong to any of them")
    calls = [
        c for c in seen.backward_calls if c.step >= 1 and max(c.num_new_batches, c.num_inputs) >= 2
    ]
    if len({(call.where, *(t.kind for t in call.terms)) for call in calls}) > 1:
        return Unseen(f"{usual} backwards per step, of different losses")
    factors = []
    for call in calls:
        means = [t for t in call.terms if t.kind != "other" and t.reduction == "mean"]
        if call.terms and len(means) == len(call.terms):
            # each of several terms has its own weight: only an undivided one is certain
            ones = [t.factor for t in means if t.factor == 1.0 or len(means) == 1]
            factors.append(ones[0] if ones else None)
    known = [f for f in factors if f is not None]
    if not known or len(known) < len(factors):
        return Unseen(f"{usual} backwards per step; what the loss was divided by is unknown")
    factor = median(known)
    if factor * usual > 1.5:
        return Found(
            evidence=f"each step accumulates {usual} backwards of a mean loss with factor "
            f"{factor:g}: the step is {factor * usual:g} times as large as for one batch of all "
            "examples",
            fix=f"Divide the loss by {usual} before backward.",
            where=calls[0].where,
            numbers={"backwards": usual, "factor": factor},
        )
    return Sound(f"{usual} backwards per step, each with factor {factor:g}")


def bad_initialisation(seen: Seen) -> Answer:
    """Measures the initial weights: constant, identical later, zero, or of unusual scale."""
    models = [m for m in seen.models if m.num_weights or m.alike_weights or m.constant_factors]
    if not models:
        return Unseen("no model with linear or convolution layers was seen before its first step")
    fix = "Keep torch's default initialisation, or use nn.init.kaiming_normal_."
    for model in models:
        if model.constant_weights:
            return Found(
                evidence=f"{len(model.constant_weights)} of {model.num_weights} layers of "
                f"{model.built} are initialised with a constant, such as "
                f"{model.constant_weights[0]}: their units stay identical",
                fix=fix,
                where=model.called_at,
            )
        factors = model.constant_factors if len(model.constant_factors) >= 2 else ()
        if names := factors or model.alike_weights:
            how = "after several steps their rows or columns are still identical"
            if factors:  # a single one, between layers that differ, diverges
                how = "they are multiplied as matrices"
            return Found(
                evidence=f"{len(names)} weights of {model.built} are initialised with a constant, "
                f"such as {names[0]}, and {how}: their units are identical",
                fix=fix,
                where=model.called_at,
            )
        if len(model.zero_weights) >= 2 and len(model.zero_weights) > 0.5 * model.num_weights:
            return Found(
                evidence=f"{len(model.zero_weights)} of {model.num_weights} layers of "
                f"{model.built} are initialised to zero, so that their units stay identical, such "
                f"as {model.zero_weights[0]}",
                fix=fix,
                where=model.called_at,
            )
        scales = model.scales
        if len(scales) < 2:
            continue
        usual = median(scales)
        if usual > _LARGE_SCALE or usual < _SMALL_SCALE:
            return Found(
                evidence=f"the initial weights of {model.built} have a scale of {usual:.2g} / "
                "sqrt(fan_in); 0.6 to 1.4 preserves the scale of activations",
                fix=fix,
                where=model.called_at,
                numbers={"scale": usual},
            )
    return Sound("the initial weights have a usual scale")


def batch_norm_tiny_batch(seen: Seen) -> Answer:
    """Counts the examples per batch in BatchNorm layers."""
    if not seen.norm_counts:
        return Unseen("no BatchNorm layer in training mode was seen")
    for kind, counts in seen.norm_counts.items():
        if max(counts) <= _TINY_BATCH:
            return Found(
                evidence=f"{kind} normalises by the mean and variance of only {max(counts)} "
                "examples at a time, which are mostly noise",
                fix="Use GroupNorm or LayerNorm, a larger batch, or SyncBatchNorm.",
                where=next((m.called_at for m in seen.models if m.called_at), None),
                numbers={"num_examples": max(counts)},
            )
    return Sound("BatchNorm layers get enough examples")

"""Faults in what is learned and how fast: optimizers, learning rates, non-finite losses."""

from __future__ import annotations

from math import isfinite
from statistics import fmean, median

from stepladder.records.files import Json
from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.faults.models.without_gradient import listed, without_gradients
from stepladder.watching.faults.steps.options import other_option
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import OptimizerSeen
from stepladder.watching.seen.weights import RepeatedSeen

_NO_STEP = Unseen("no optimizer step was seen")
_MIN_STEPS = 3  # inspected steps before a missing gradient counts
_TOO_HIGH = 0.1  # of the weights per step: TheDeepChecker's upper bound
_TRAVEL = 0.02  # of the weights in the whole run: too little to learn anything
_MIN_WAITING = 4  # inspections at which an optimizer had not stepped yet
_MIN_REPEATED = 2  # followed steps
_MIN_SHARED = 2  # inspections at which two optimizers stepped the same weights
_LONG = 40  # steps of the other optimizers in the meantime
_MIN_LOST = 3  # non-finite losses at the end
_MIN_CLIMBS = 5  # steps at which update and gradient were compared
_UP = 0.2  # the cosine of an ascending step
_MOST = 0.9  # of those steps
_LEARNT = 0.05  # of the loss: a fall that counts as learning


def parameters_never_step(seen: Seen) -> Answer:  # noqa: PLR0911  (one return per cause)
    """Checks for backward without step, an idle optimizer, and steps without any gradient.

    For the last, the operation that cut the graph is searched for.
    """
    if seen.num_backwards == 0:
        return Unseen("backward was not called")
    dead = [
        o
        for o in seen.optimizers
        if o.num_looked >= _MIN_STEPS and o.num_empty == o.num_looked and not o.num_cleared_late
    ]
    if dead:
        return without_gradients(dead[0], seen)
    unheld = [m for m in seen.models if m.num_unheld >= _MIN_STEPS]
    if unheld and seen.num_steps >= _MIN_STEPS:
        return Found(
            evidence=f"{unheld[0].built} is trained, but no optimizer that steps holds any of its "
            "weights: the optimizers hold those of another model",
            fix="Create the optimizer after the model is final, or load weights into the same "
            "model with model.load_state_dict(…).",
            where=unheld[0].called_at,
        )
    idle = [o for o in seen.optimizers if o.num_steps == 0 and o.owns_modules]
    stepped = [o for o in seen.optimizers if o.num_steps]
    waiting = [o for o in idle if o.num_waiting >= _MIN_WAITING]
    if waiting and seen.num_steps >= _LONG and not seen.was_cut and not seen.precision.num_scaled:
        one = waiting[0]
        return Found(
            evidence=f"{one.kind} never stepped in {seen.num_steps} steps of another optimizer, "
            f"though its {one.num_params} weights had gradients and are in no other optimizer",
            fix="Call its step() after backward, or remove it and freeze its weights.",
            where=one.built_at,
            numbers={"num_steps": seen.num_steps},
            severity=Severity.WARNING,
        )
    if seen.num_backwards >= 10 and idle and not stepped:
        return Found(
            evidence=f"backward ran {seen.num_backwards} times, but the optimizer {idle[0].kind} "
            "never took a step, so the weights did not change",
            fix="Call optimizer.step() after backward.",
            where=seen.backward_at or idle[0].built_at,
        )
    if all(one.num_empty == one.num_looked for one in stepped):
        return Unseen("no step with a gradient was inspected")
    return Sound("every optimizer that stepped had gradients")


def parameters_not_in_optimizer(seen: Seen) -> Answer:
    """Compares the weights that get a gradient with those held by optimizers."""
    models = [m for m in seen.models if m.is_optimised or m.not_in_optimizer]
    if not models:
        return Unseen("no model with weights in an optimizer was seen for three steps")
    for model in models:
        names = model.not_in_optimizer
        if names and model.num_unheld < _MIN_STEPS:
            return Found(
                evidence=f"{len(names)} weights of {model.built} have a gradient, but are in no "
                f"optimizer, so they are never trained: {listed(names)}",
                fix="Pass them to the optimizer, or freeze them with requires_grad_(False).",
                where=seen.optimizers[0].built_at or seen.optimizers[0].stepped_at,
                numbers={"num_weights": len(names)},
            )
    return Sound("every weight with a gradient is in an optimizer")


def parameters_twice(seen: Seen) -> Answer:
    """Checks for weights twice in an optimizer, in two of them, or in a layer that is repeated.

    A layer counts as repeated if a container lists it several times, and each of its calls receives
    what the last one returned.
    """
    stepped = [o for o in seen.optimizers if o.num_steps]
    if not stepped:
        return _NO_STEP
    for one in stepped:
        if one.twice:
            return Found(
                evidence=f"{one.kind} holds {len(one.twice)} weights more than once and updates "
                f"them as often in each step: {listed(one.twice)}",
                fix="Pass each weight once: either parts of the model or the whole model, not "
                "both.",
                where=one.built_at or one.stepped_at,
                numbers={"num_weights": len(one.twice)},
            )
        if one.num_shared >= _MIN_SHARED:
            return Found(
                evidence=f"{len(one.shared)} weights of the optimizer {one.kind} are also in "
                "another optimizer, so each step changes them twice by the same gradients: "
                f"{listed(one.shared)}",
                fix="Pass each weight to one optimizer only, or clear gradients and call backward "
                "between their steps.",
                where=one.built_at or one.stepped_at,
                numbers={"num_weights": len(one.shared)},
            )
    for layer in seen.repeated:
        if layer.num_steps >= _MIN_REPEATED:
            return _repeated(layer)
    return Sound("every weight is stepped once for each gradient")


def _repeated(one: RepeatedSeen) -> Found:
    return Found(
        evidence=f"{one.container} of {one.model} lists one and the same {one.layer} {one.num} "
        f"times, and in {one.num_steps} followed steps each of its calls received what the one "
        f"before had returned: these {one.num} layers share one set of {one.num_weights:,} weights",
        fix=f"Create a layer for each place: [{one.layer}(…) for _ in range({one.num})] instead of "
        f"[{one.layer}(…)] * {one.num}; to share weights, list it once and call it in a loop.",
        where=one.where,
        numbers={"num_layers": one.num, "num_weights": one.num_weights},
    )


def unregistered_modules(seen: Seen) -> Answer:
    """Finds layers that a model calls but does not list in `modules()`."""
    if not seen.modules_were_seen:
        return Unseen("layers are inspected only without torch.compile")
    if seen.unregistered:
        names = ", ".join(list(seen.unregistered)[:4])
        where = next((m.called_at for m in seen.models if m.called_at), None)
        return Found(
            evidence=f"the model calls {len(seen.unregistered)} layers that are not registered in "
            f"it, and no optimizer holds their weights: {names}",
            fix="Store layers in nn.ModuleList or nn.ModuleDict instead of a list or dict.",
            where=where,
            numbers={"num_layers": len(seen.unregistered)},
        )
    return Sound("all layers that the model calls are registered")


def loss_maximised(seen: Seen) -> Answer:
    """Reads the sign of a known loss in the autograd graph, and checks that the loss then grows."""
    for one in seen.optimizers:
        cosines = [cosine for _, cosine in one.climbs]
        is_up = len(cosines) >= _MIN_CLIMBS and sum(c > _UP for c in cosines) > _MOST * len(cosines)
        if is_up and one.owns_modules and not one.maximises:
            return Found(
                evidence=f"{one.kind} steps in the direction of the gradient: the median cosine "
                f"between update and gradient was {median(cosines):.2f} over {len(cosines)} steps, "
                "and should be negative",
                fix="Subtract the update from the weights, or remove maximize=True.",
                where=one.built_at or one.stepped_at,
                numbers={"cosine": median(cosines)},
            )
    calls = [call for call in seen.backward_calls if call.terms]
    stepped = [o for o in seen.optimizers if o.num_steps and o.owns_modules]
    if not calls or not stepped:
        return Unseen("no backward followed by a step was inspected")
    if len(stepped) > 1:
        return Unseen("several optimizers: one of them may maximise a loss on purpose")
    sign = -1.0 if stepped[0].maximises else 1.0
    for call in calls:
        known = [t for t in call.terms if t.kind != "other" and t.sign]
        if not known or any(sign * t.sign > 0 for t in known):
            continue
        kinds = ", ".join(sorted({t.kind for t in known}))
        first, last = _ends(stepped[0])
        is_whole = len(known) == len(call.terms)
        is_falling = first is not None and last is not None and sign * last < sign * first
        if (is_whole and is_falling) or _falls_without_bound(stepped[0]):
            values = _values(stepped[0])
            return Found(
                evidence=f"{kinds} has a minus sign in the value that backward is called on, so "
                f"each step increases the loss: the value went from {values[0]:.3g} to "
                f"{values[-1]:.3g}",
                fix="Change the sign, or remove maximize=True: optimizers minimise.",
                where=call.where,
                numbers={"first": values[0], "last": values[-1]},
            )
    return Sound("losses have a positive sign")


def learning_rate_too_high(seen: Seen) -> Answer:  # noqa: PLR0911  (one return per cause)
    """Compares updates with weights (over 0.1 is too much), and the last losses with the first."""
    if (found := other_option(seen, is_low=False)) is not None:
        return found
    stepped = [o for o in seen.optimizers if o.num_steps >= 10 and len(o.losses) >= 10]
    if not stepped:
        return Unseen("fewer than ten steps with a loss were seen")
    if len(stepped) > 1:
        return Unseen("several optimizers: their losses need not fall")
    one = stepped[0]
    _, last = _ends(one)
    first = one.losses[0][1]
    ratios = [r for _, r in one.ratios]
    ratio = max(median(ratios[:6]), median(ratios)) if ratios else 0.0
    where = one.built_at or one.stepped_at
    fix = "Divide the learning rate by 10, or find it with a range test; a warm-up also helps."
    numbers: dict[str, Json] = {"update_ratio": ratio}
    if last is None or not isfinite(first):
        is_high = ratio > _TOO_HIGH or (ratio > _TOO_HIGH / 10 and _had_grown(one))
        if seen.loss_not_finite_at and not seen.not_finite and is_high:
            return Found(
                evidence=f"the loss became non-finite at step {seen.loss_not_finite_at}; a step "
                f"changed the weights by {ratio:.2g} of their norm (about 0.001 is usual)",
                fix=fix,
                where=where,
                numbers=numbers,
            )
        return Sound("the loss is not finite, but not because of the learning rate")
    least = _least(one)
    has_grown = first > 0 and least > 0 and last > 3 * least and last > 0.5 * first
    is_stuck = first > 0 and last > 0.9 * first
    if ratio > _TOO_HIGH and (has_grown or is_stuck):
        return Found(
            evidence=f"a step changed the weights by {ratio:.2g} of their norm (about 0.001 is "
            f"usual), and the loss went from {first:.3g} to {last:.3g}",
            fix=fix,
            where=where,
            numbers=numbers,
        )
    if has_grown and last > 3 * first:
        return Found(
            evidence=f"the loss grew from {first:.3g} to {last:.3g}",
            fix=fix,
            where=where,
            numbers=numbers,
        )
    return Sound(f"a step changes the weights by {ratio:.2g} of their norm")


def _had_grown(one: OptimizerSeen) -> bool:
    """Return whether the loss had doubled from its minimum before it became non-finite."""
    values = [value for _, value in one.losses if isfinite(value)]
    return bool(values) and values[-1] > 2 * min(values) > 0


def loss_not_finite(seen: Seen) -> Answer:
    """Checks whether the loss became and stayed NaN or infinite although the data is finite."""
    stepped = [o for o in seen.optimizers if len(o.losses) >= _MIN_LOST]
    if not stepped:
        return Unseen("no loss of a step was seen")
    for one in stepped:
        values = [value for _, value in one.losses]
        if seen.not_finite is not None or any(map(isfinite, values[-_MIN_LOST:])):
            continue
        num = sum(not isfinite(value) for value in values)
        return Found(
            evidence=f"the loss became non-finite at step {seen.loss_not_finite_at} and stayed so "
            f"({num} of {len(values)} steps), although all inspected inputs and targets "
            "were finite",
            fix="Look for log, sqrt, norm or a division at 0 (add a small epsilon), or a learning "
            "rate that is too high. torch.autograd.set_detect_anomaly(True) names the operation.",
            where=one.stepped_at,
            numbers={"num_lost": num},
        )
    return Sound("the loss stayed finite or recovered")


def learning_rate_too_low(seen: Seen) -> Answer:
    """Sums the updates: below 2 % of the weights in a run whose loss does not fall.

    Without that: another option of the script is passed as the learning rate.
    """
    if (found := other_option(seen, is_low=True)) is not None:
        return found
    stepped = [o for o in seen.optimizers if o.num_steps >= 50 and o.ratios and o.owns_modules]
    if not stepped:
        return Unseen("fewer than fifty steps were seen")
    if len(stepped) > 1:
        return Unseen("several optimizers: their losses need not fall")
    one = stepped[0]
    ratio = max(r for _, r in one.ratios)
    values = _values(one)
    size = len(values) // 4
    if size < 5 or not all(map(isfinite, values)) or ratio == 0:
        return Unseen("no update or no finite loss was seen")
    first, last = fmean(values[:size]), fmean(values[-size:])
    if ratio * one.num_steps < _TRAVEL and last > (1 - _LEARNT) * first > 0:
        return Found(
            evidence=f"a step changes the weights by at most {ratio:.1e} of their norm (about "
            f"0.001 is usual), and in {one.num_steps} steps the loss went from {first:.4g} to "
            f"{last:.4g}",
            fix="Multiply the learning rate by 10 or 100, or find it with a range test.",
            where=one.built_at or one.stepped_at,
            numbers={"update_ratio": ratio, "num_steps": one.num_steps},
        )
    return Sound(f"a step changes the weights by up to {ratio:.2g} of their norm")


def decay_on_norms_and_biases(seen: Seen) -> Answer:
    """Checks parameter groups: weight decay on one-dimensional weights, or Adam with L2."""
    stepped = [o for o in seen.optimizers if o.num_steps]
    if not stepped:
        return _NO_STEP
    for one in stepped:
        if one.decays_by_l2:
            return Found(
                evidence=f"{one.kind} adds its weight decay of {one.decay:g} to the gradient, "
                "which "
                "it then divides by the gradient's size: weights with large gradients hardly decay",
                fix="Use AdamW, which decays weights separately from the gradient."
                if one.kind == "Adam"
                else "Use an optimizer with decoupled weight decay, such as AdamW.",
                where=one.built_at or one.stepped_at,
            )
        if one.decayed and one.decay > 0:
            others = f", while {one.num_spared} others are exempt" if one.num_spared else ""
            return Found(
                evidence=f"weight decay {one.decay:g} also shrinks {len(one.decayed)} biases and "
                f"scales of normalisation layers, such as {one.decayed[0]}{others}",
                fix="Put all one-dimensional weights in a parameter group with weight_decay=0.",
                where=one.built_at or one.stepped_at,
                severity=Severity.WARNING if one.num_spared >= len(one.decayed) else None,
                numbers={"num_weights": len(one.decayed)},
            )
    return Sound("no weight decay on norms and biases")


def _values(one: OptimizerSeen) -> list[float]:
    return [value for _, value in one.losses]


def _ends(one: OptimizerSeen) -> tuple[float | None, float | None]:
    """Return the mean loss of the first three steps and of the last tenth (at least three)."""
    values = _values(one)
    size = max(3, len(values) // 10)
    if len(values) < 2 * size:
        return None, None
    first, last = fmean(values[:3]), fmean(values[-size:])
    is_finite = all(isfinite(value) for value in (first, last))
    return (first, last) if is_finite else (None, None)


def _least(one: OptimizerSeen) -> float:
    """Return the lowest mean loss over a tenth of the steps."""
    values = _values(one)
    size = max(3, len(values) // 10)
    return min(fmean(values[i : i + size]) for i in range(0, len(values) - size + 1, size))


def _falls_without_bound(one: OptimizerSeen) -> bool:
    """Return whether the loss falls far below 0, as fast in the last quarter as before it."""
    values = _values(one)
    if len(values) < 40 or not all(map(isfinite, values)):
        return False
    size = len(values) // 4
    first, second, third, last = (fmean(values[i * size : (i + 1) * size]) for i in range(4))
    is_falling = first > second > third > last
    is_steady = third - last > 0.7 * (second - third)
    return is_falling and is_steady and last < -10 * max(1.0, abs(values[0]))

"""Faults of weights that do not change: without a gradient, or with updates that are lost."""

from __future__ import annotations

from stepladder.records.files import Json
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.seen.steps import OptimizerSeen
from stepladder.watching.seen.weights import CauseSeen, RoundingSeen, WithoutSeen

_MIN_STEPS = 3  # inspected steps before a missing gradient counts
_MIN_ZERO = 3  # inspected steps before gradients of zeros count
_MIN_ROUNDED = 5  # inspected steps before a lost update counts
_MOST_LOST = 0.6  # of the values that had a gradient
_MIN_VALUES = 64
_BITS = {"bfloat16": 8, "float16": 11}  # of the significand
_NEW_OPTIMIZER = (
    "Create the optimizer from model.parameters() after the model is final, not before it is "
    "copied or its layers are replaced."
)


def without_gradients(one: OptimizerSeen, seen: Seen) -> Found:
    """Name the cause of missing gradients, if where backward started proves one."""
    starts = seen.starts
    where = one.built_at or one.stepped_at
    cause = ""
    fix = (
        "Create the optimizer from model.parameters() after the model is final, and look for "
        "detach(), no_grad(), .data or .item() between its weights and the loss."
    )
    if starts and not any(start.num_weights for start in starts):
        cuts = {start.cut for start in starts}
        cut = starts[0].cut if len(cuts) == 1 else None
        cause = (
            ": backward begins at a leaf, which has no graph"
            if all(start.is_leaf for start in starts)
            else ": the graph of what backward is called on reaches no weights"
        )
        fix = (
            "Compute the loss from the model's output with operations that have a gradient, and "
            "leave out requires_grad: it does not restore a graph."
        )
        where = starts[0].where or where
        if cut is not None:
            at = f" at {cut.where}" if cut.where is not None else ""
            cause += f"; it was cut by {cut.operation}{at}"
            where = cut.where or where
    elif starts and all(start.num_weights for start in starts):
        if any(start.is_called for start in starts):
            cause = (
                ": a model with these weights is called, but the graph of the loss does not reach "
                "them"
            )
            fix = "Look for detach(), no_grad(), .data or .item() between them and the loss."
        else:
            cause = ": the optimizer holds weights that the model does not use"
            fix = _NEW_OPTIMIZER
    if one.causes and one.causes[0].cause.kind == "replaced":
        built = one.causes[0].cause.model
        cause = (
            f": the optimizer holds weights that the model does not use, and {built} has others of "
            "the same shapes, which are in no optimizer"
        )
        fix = _NEW_OPTIMIZER
    elif one.causes and not any(start.cut for start in starts):
        kinds = {by.cause.kind for by in one.causes}
        cause = _reasons(one.causes, one.num_params) or cause
        fix = _fix_for(one.causes)
        where = (_line_of(one.causes) if kinds == {"cut"} else None) or where
        where = one.stepped_at if kinds == {"late"} else where
    return Found(
        evidence=f"none of the {one.num_params} weights of {one.kind} had a gradient at any of "
        f"{one.num_looked} inspected steps, though backward ran {seen.num_backwards} times{cause}",
        fix=fix,
        where=where,
        numbers={"num_steps": one.num_steps},
    )


def listed(names: tuple[str, ...]) -> str:
    """Return the first names, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if names[4:] else "")


def frozen_by_accident(seen: Seen) -> Answer:
    """Lists weights that an optimizer holds and that never got a gradient, or never changed.

    The operation that cut the graph is named if it is proven, and so is a backward whose gradients
    are cleared before any step. Gradients of zeros alone count as well.
    """
    for one in seen.optimizers:
        if one.rounding is not None and _is_lost(one.rounding):
            return _lost_updates(one, one.rounding)
    looked = [o for o in seen.optimizers if o.num_looked - o.num_empty >= _MIN_STEPS]
    if not looked:
        return Unseen("no optimizer step was seen")
    for one in looked:
        names = one.without_grad
        if names:
            return Found(
                evidence=f"{len(names)} of {one.num_params} weights in the optimizer {one.kind} "
                f"had no gradient at any of {one.num_looked} inspected steps, so they are not "
                f"trained: {listed(names)}{_reasons(one.causes, len(names))}",
                fix=_fix_for(one.causes),
                where=_line_of(one.causes, one.stepped_at) or one.built_at or one.stepped_at,
                numbers={"num_weights": len(names), **_counts(one.causes)},
            )
    zeros = next((o for o in looked if o.zero_grad and o.num_zero_looks >= _MIN_ZERO), None)
    if zeros is not None:
        return _only_zeros(zeros)
    return Sound("every trainable weight got a gradient")


def _only_zeros(one: OptimizerSeen) -> Found:
    num, are_all = len(one.zero_grad), len(one.zero_grad) >= one.num_params
    which = f"all {num}" if are_all else f"{num} of {one.num_params}"
    cause = ""
    fix = (
        "Look for a maximum, relu, clamp or mask between them and the loss that always takes the "
        "other side, such as one with an infinite value, and for a factor that is 0."
    )
    if one.num_zero_weights == num:
        cause = (
            ", and they are zero themselves: where zeros are multiplied by zeros, neither gets a "
            "gradient"
        )
        fix = "Initialise one of the two factors with random numbers, as the first one in LoRA."
    elif are_all:
        cause = ": nothing is learned"
    return Found(
        evidence=f"the gradients of {which} weights of {one.kind} were exactly zero at all of "
        f"{one.num_zero_looks} inspected steps{cause}: {listed(one.zero_grad)}",
        fix=fix,
        where=one.stepped_at or one.built_at,
        numbers={"num_weights": num, "num_steps": one.num_zero_looks},
    )


def _reasons(causes: tuple[WithoutSeen, ...], total: int) -> str:
    """Return the causes that are proven, as the end of a sentence."""
    said = []
    for one in causes[:3]:
        num, cause = len(one.names), one.cause
        them = ("it" if num == 1 else "them") if num == total else f"{num} of them"
        if cause.kind == "cut":
            said.append(f"{_operation(cause)} cuts {them} off from the loss")
        elif cause.kind == "uncalled":
            whose = "their layers are" if num == total else f"the layers of {num} are"
            said.append(f"{whose} not called")
        elif cause.kind in ("late", "cleared"):
            how = "after the step, " if cause.kind == "late" else ""
            said.append(
                f"{how}{_backward(cause)} computes gradients of {them}, but "
                f"{_clearing(cause)} before {'the next' if how else 'the'} step"
            )
        else:
            said.append(
                f"no model that is called has {them}, but {cause.model} has others of the same "
                "shapes, which are in no optimizer"
            )
    return f"; {'; '.join(said)}" if said else ""


def _operation(cause: CauseSeen) -> str:
    return f"{cause.operation} at {cause.where}" if cause.where else cause.operation


def _backward(cause: CauseSeen) -> str:
    return f"the backward at {cause.where}" if cause.where else "a backward"


def _clearing(cause: CauseSeen) -> str:
    return f"{cause.cleared_at} clears them" if cause.cleared_at else "they are cleared"


def _counts(causes: tuple[WithoutSeen, ...]) -> dict[str, Json]:
    counts: dict[str, Json] = {}
    for kind in dict.fromkeys(one.cause.kind for one in causes):
        counts[f"num_{kind}"] = sum(len(one.names) for one in causes if one.cause.kind == kind)
    return counts


def _line_of(causes: tuple[WithoutSeen, ...], stepped_at: str | None = None) -> str | None:
    """Return the line that must be changed, as far as it is known."""
    lines = (stepped_at if o.cause.kind == "late" else o.cause.where for o in causes)
    return next((line for line in lines if line), None)


def _fix_for(causes: tuple[WithoutSeen, ...]) -> str:
    """Return what to do about the cause of most of the missing gradients."""
    if not causes:
        return (
            "Look for detach(), no_grad(), .data or .item() between them and the loss. If "
            "they are meant to be frozen, leave them out of the optimizer."
        )
    cause = max(causes, key=lambda one: len(one.names)).cause
    if cause.kind == "uncalled":
        return "Call these layers in the forward pass, or leave them out of the optimizer."
    if cause.kind == "replaced":
        return _NEW_OPTIMIZER
    if cause.kind == "late":
        return f"Call step() after the last backward of each iteration ({cause.where})."
    if cause.kind == "cleared":
        return "Call zero_grad() once per step, before the first backward of each iteration."
    if cause.operation in ("detach()", ".data"):
        how = f"Remove {_operation(cause)}."
    elif cause.operation == "torch.no_grad()":
        how = f"Call these layers without torch.no_grad() ({cause.where})."
    else:
        how = f"Replace {_operation(cause)} by an operation that has a gradient."
    return f"{how} If these weights are meant to be frozen, leave them out of the optimizer."


def _is_lost(one: RoundingSeen) -> bool:
    is_enough = one.num_looks >= _MIN_ROUNDED and one.num_values >= _MIN_VALUES
    return is_enough and one.num_still > _MOST_LOST * one.num_values


def _lost_updates(one: OptimizerSeen, lost: RoundingSeen) -> Found:
    share = lost.num_still / lost.num_values
    rounding = (
        f", which rounds to {bits} significant bits" if (bits := _BITS.get(lost.dtype)) else ""
    )
    return Found(
        evidence=f"{100 * share:.0f} % of {lost.num_values} inspected {lost.dtype} values with a "
        f"gradient did not change in steps {lost.first_step + 1} to {lost.last_step + 1} of "
        f"{one.kind}: at a learning rate of {lost.rate:g}, their updates are lost in {lost.dtype}"
        f"{rounding}",
        fix="Keep the weights in float32 and compute under torch.autocast, or choose a learning "
        "rate whose updates are not rounded away.",
        where=one.built_at or one.stepped_at,
        numbers={
            "num_values": lost.num_values,
            "num_still": lost.num_still,
            "num_inspected": lost.num_looks,
        },
    )

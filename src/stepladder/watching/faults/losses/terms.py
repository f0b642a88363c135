"""Faults in the terms of a loss."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.losses import ConstantTermSeen, UnusedTermSeen
from stepladder.watching.seen.seen import Seen

_MIN_SEEN = 2  # steps
_MIN_UNUSED = 4  # backwards
_MIN_EQUAL = 3  # steps, if the arguments have no graph
_MIN_LATE = 5, 10  # steps if they have: a copy of a model begins with equal outputs
_ON_PURPOSE = ("detach()", ".data")  # may be meant to stop a gradient


def loss_term_lost(seen: Seen) -> Answer:
    """Reads the sum that backward is called on from the source, and follows its operations.

    A term counts if it had a graph when it was turned into a number, in a step with one backward.
    So does a loss of torch whose arguments are always equal, or are both cut off their graphs; and
    a term that reaches only weights of another optimizer, whose gradients no step uses.
    """
    calls = [c for c in seen.backward_calls if c.terms]
    if not calls:
        return Unseen("no backward was inspected")
    is_single = all(set(one.backwards) <= {1} for one in seen.optimizers if one.num_steps)
    for one in seen.lost_terms:
        if one.num_seen < _MIN_SEEN or not is_single:
            continue
        is_detached = one.operation in _ON_PURPOSE
        is_certain = one.is_direct and not is_detached
        what = "cuts off its graph" if is_detached else "turns it into a number without a graph"
        return Found(
            evidence=f"{one.term} is a term of {one.loss}, which backward is called on, but "
            f"{one.operation} {what}: in {one.num_seen} followed steps it was computed from "
            "weights that get no gradient from it",
            fix=f"Leave out {one.operation}: the loss needs the tensor itself, with its graph.",
            where=one.where,
            numbers={"num_steps": one.num_seen},
            severity=None if is_certain else Severity.WARNING,
        )
    for term in (one for one in seen.constant_terms if not one.has_others):
        if (found := _constant(term)) is not None:
            return found
    unused = max(seen.unused_terms.values(), key=lambda term: term.num_seen, default=None)
    if unused is not None and unused.num_seen >= _MIN_UNUSED:
        return _unused(unused)
    return Sound("no term of the loss was turned into a number")


def _unused(one: UnusedTermSeen) -> Found:
    term = one.code or f"a term of the loss (of {one.kind})"
    return Found(
        evidence=f"{term} is a term of what backward is called on, but reaches no weight of "
        f"{one.optimizer}, which steps afterwards: only {one.num_weights} weights of another "
        f"optimizer, whose gradients are cleared before it steps, at {one.num_seen} inspected "
        "steps, so nothing is trained by it",
        fix="Leave out detach() or no_grad() on the way from the weights that it should train.",
        where=one.where,
        numbers={"num_steps": one.num_seen, "num_weights": one.num_weights},
        severity=Severity.WARNING,
    )


def _constant(one: ConstantTermSeen) -> Found | None:
    num, has_graph = len(one.steps), one.has_graph
    is_late = num >= _MIN_LATE[0] and max(one.steps) >= _MIN_LATE[1]
    what = f"{one.term} is a term of {one.loss}, which backward is called on, but "
    no_gradient = f"so that no weight got a gradient from it in {num} inspected steps"
    if one.num_equal == one.num_calls:
        if not (is_late if has_graph else num >= _MIN_EQUAL):
            return None
        what = what if one.is_added else f"backward is called on {one.term}, but "
        evidence = (
            f"{what}both arguments of {one.kind} had the same values in all {one.num_calls} "
            "inspected calls: it compares a tensor with itself, is always 0 and has no gradient"
        )
        fix = (
            "Pass the output of the model that is to learn as one argument, and what it is "
            "compared with as the other."
        )
    elif has_graph or num < _MIN_SEEN or not (one.is_added and one.is_weighted):
        return None
    elif one.cut:
        evidence = f"{what}neither argument has a graph, as {one.cut} cuts it off, {no_gradient}"
        fix = f"Leave out {'detach()' if 'detach' in one.cut else '.data'} on the side that learns."
    elif one.num_unlearnt >= _MIN_SEEN:
        evidence = (
            f"{what}neither argument has a graph, as {one.without} is called under "
            f"torch.no_grad(), {no_gradient}"
        )
        fix = "Call the model outside of torch.no_grad(), or use an output that has a graph."
    else:
        return None
    return Found(
        evidence=evidence,
        fix=fix,
        where=one.where,
        numbers={"num_steps": num, "num_equal": one.num_equal},
        severity=Severity.WARNING,
    )

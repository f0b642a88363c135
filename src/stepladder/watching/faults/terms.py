"""Faults in the terms of a loss."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen

_MIN_SEEN = 2  # steps
_ON_PURPOSE = ("detach()", ".data")  # may be meant to stop a gradient


def loss_term_lost(seen: Seen) -> Answer:
    """Reads the sum that backward is called on from the source, and follows its operations.

    A term counts if it had a graph when it was turned into a number, in a step with one backward.
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
    return Sound("no term of the loss was turned into a number")

"""Faults in the terms of a loss."""

from __future__ import annotations

from math import prod

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen

_MIN_SEEN = 2  # steps
_MIN_SUMMED = 3  # inspected calls of backward
_LEAST_FACTOR = 0.25  # of a sum: smaller ones are weights that someone chose
_OUTWEIGHED = 4.0  # a mean with a factor this close to the size of the batch was balanced by hand
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


def terminal_states_ignored(seen: Seen) -> Answer:
    """Reads the target of Q-learning and the variables of its function from the source.

    A target counts if it adds the discounted value of the next state and the function receives the
    end of the episode, but never uses it; and if ends occur, where their values can be read.
    """
    if not any(c.terms for c in seen.backward_calls):
        return Unseen("no backward was inspected")
    for one in seen.ignored_ends:
        if one.num_seen < _MIN_SEEN or (one.num_transitions and not one.num_ends):
            continue
        ends = (
            f", and {one.num_ends} of {one.num_transitions} transitions that were inspected end an "
            "episode"
            if one.num_ends
            else ""
        )
        return Found(
            evidence=f"{one.target} adds the value of the next state also where an episode has "
            f"ended: {one.name} is received with each transition and never used{ends}",
            fix="Multiply the value of the next state by 1 where the episode continues and by 0 "
            "where it has ended, as in reward + gamma * (1 - done) * value.",
            where=one.where,
            numbers={"num_ends": one.num_ends, "num_transitions": one.num_transitions},
        )
    return Sound("no target with the value of a next state ignores the end of an episode")


def summed_beside_mean(seen: Seen) -> Found | None:
    """Find a sum over all examples of a batch that is added to a mean over them."""
    calls = [(c, c.summed) for c in seen.backward_calls if c.summed is not None]
    heavy = [
        (call, one)
        for call, one in calls
        if one.factor >= _LEAST_FACTOR and one.num * one.factor >= _OUTWEIGHED * one.mean_factor
    ]
    if len(heavy) < max(_MIN_SUMMED, len(calls) // 2):
        return None
    call, one = heavy[0]
    each = prod(one.shape[1:])
    values = f" and {each:,} values of each" if each > 1 else ""
    return Found(
        evidence=f"a term of the loss is a sum over all {one.num} examples of the batch{values}, "
        f"added to a mean over the batch, in {len(heavy)} inspected steps: it weighs {one.num} "
        "times as much as its mean, and more in a larger batch",
        fix="Sum over the values of each example only, as in .sum(1), and take the mean over the "
        "batch of both terms; or divide the sum by the batch size.",
        where=call.where,
        numbers={"num_examples": one.num, "factor": one.factor},
    )

"""Faults in the targets of Q-learning."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.script.slips import UNDISCOUNTED
from stepladder.watching.seen.seen import Seen

_MIN_SEEN = 2  # steps


def terminal_states_ignored(seen: Seen) -> Answer:
    """Reads the target of Q-learning and the variables of its function from the source.

    A target counts if it adds the discounted value of the next state and the function receives the
    end of the episode, but never uses it; and if ends occur, where their values can be read.
    """
    if not any(c.terms for c in seen.backward_calls):
        return Unseen("no backward was inspected")
    slip = next((one for one in seen.slips if one.kind == UNDISCOUNTED), None)
    if slip is not None:
        return Found(
            evidence=f"`{slip.code}` adds the discount and the mask to the value of the next state "
            "instead of multiplying it by them: it is neither discounted nor left out where an "
            "episode has ended",
            fix="Multiply: reward + gamma * mask * next_value.",
            where=slip.where,
        )
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

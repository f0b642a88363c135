"""Faults that a script's source shows: lines without effect, and layers that are one layer."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.script.slips import PRECEDENCE, SAME_LAYER, UNCALLED, UNUSED
from stepladder.watching.seen.models import SlipSeen
from stepladder.watching.seen.seen import Seen


def _first(seen: Seen, *kinds: str) -> SlipSeen | None:
    return next((one for one in seen.slips if one.kind in kinds), None)


def line_without_effect(seen: Seen) -> Answer:
    """Reads the script's files for results that are thrown away and methods without a call."""
    if not seen.num_steps:
        return Unseen("no optimizer step was seen")
    one = _first(seen, UNUSED, UNCALLED)
    if one is None:
        return Sound(
            "no line of the script throws away a changed copy or lacks the call of a method"
        )
    if one.kind == UNCALLED:
        return Found(
            evidence=f"`{one.code}` names a method without calling it: the line does nothing",
            fix=f"Write {one.code}().",
            where=one.where,
        )
    return Found(
        evidence=f"`{one.code}` is a line of its own, but {one.name} changes nothing in place: it "
        "returns a changed copy, which is thrown away",
        fix=f"Assign the result, as in x = x.{one.name}(…), or call {one.name}_ if there is one.",
        where=one.where,
    )


def normalised_in_part(seen: Seen) -> Answer:
    """Reads the script's files for a mean that is divided before it is subtracted."""
    if not seen.num_steps:
        return Unseen("no optimizer step was seen")
    one = _first(seen, PRECEDENCE)
    if one is None:
        return Sound("no mean is divided by a standard deviation before it is subtracted")
    return Found(
        evidence=f"`{one.code}` divides only the mean by the standard deviation, as a division "
        "comes before a subtraction: the result is neither centred at 0 nor scaled to 1",
        fix="Put the difference in parentheses: (x - x.mean()) / x.std().",
        where=one.where,
    )


def one_layer_for_many(seen: Seen) -> Answer:
    """Reads the script's files for a list that is multiplied, so that it has one layer n times."""
    if not seen.num_steps:
        return Unseen("no optimizer step was seen")
    one = _first(seen, SAME_LAYER)
    if one is None:
        return Sound("no list of layers is multiplied")
    return Found(
        evidence=f"`{one.code}` makes one layer and lists it several times: all of them share "
        "their weights, and give the same output for the same input",
        fix=f"Make each layer on its own: [{one.name} for _ in range(n)].",
        where=one.where,
    )

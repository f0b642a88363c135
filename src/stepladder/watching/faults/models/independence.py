"""The fault of examples of a batch that affect each other."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen

_SAME_ORDER = 1e-3  # of the spread of the outputs
_CHANGED = 1e-3  # of the spread of the outputs; rounding is a thousand times smaller


def samples_not_independent(seen: Seen) -> Answer:
    """Calls a copy in evaluation mode, and changes half of a batch: the other outputs must stay."""
    one = seen.independence
    if one is None:
        return Unseen("no model that returns one row per example was kept for a replay")
    if one.why_not is not None or not one.num_examples:
        return Unseen(f"a copy of the model was not compared: {one.why_not}")
    if one.moved <= _CHANGED < one.moved_by_place:
        return Found(
            evidence=f"outputs of {one.built} for an example change by {one.moved_by_place:.2g} "
            "standard deviations with its place in the batch, even in evaluation mode (a copy, "
            f"{one.num_examples} examples in reverse order)",
            fix="Check for a table, such as of position encodings, that is indexed or added along "
            "the batch dimension instead of that of the positions.",
            where=one.where,
            numbers={"moved": one.moved_by_place, "num_examples": one.num_examples},
        )
    if one.moved <= _CHANGED:
        return Sound(
            f"outputs of an example change by {one.moved:.1g} standard deviations when the other "
            "examples of its batch change"
        )
    why = ""
    fix = (
        "Check for a view, reshape, transpose, softmax or mean that mixes dimension 0, and for an "
        "LSTM, GRU or attention whose batch_first does not fit the order of its inputs."
    )
    if one.batch_second is not None:
        why = f"; its {one.batch_second} has batch_first=False, so the first dimension is time"
        fix = "Pass batch_first=True, or inputs of shape (time, batch, features)."
    elif one.num_without_statistics:
        why = f"; {one.num_without_statistics} BatchNorm layers have no running statistics"
        fix = "Use BatchNorm with running statistics (track_running_stats=True)."
    return Found(
        evidence=f"outputs of {one.built} for an example change by {one.moved:.2g} standard "
        "deviations when the other examples of its batch change, even in evaluation mode (a copy, "
        f"{one.num_examples} examples){why}",
        fix=fix,
        where=one.where,
        numbers={"moved": one.moved, "num_examples": one.num_examples},
    )


def positions_without_effect(seen: Seen) -> Answer:
    """Calls a copy in evaluation mode with the positions of all inputs in reverse order.

    Outputs of a model with attention and a table of positions must differ between the two.
    """
    one = seen.independence
    if one is None or one.table is None or one.moved_by_order is None:
        return Unseen("no model with attention and a table of positions was kept for a replay")
    if one.moved_by_order > _SAME_ORDER:
        return Sound(
            f"outputs change by {one.moved_by_order:.1g} standard deviations in reversed sequences"
        )
    return Found(
        evidence=f"{one.built} has a table of positions ({one.table}), but its outputs for "
        f"reversed sequences are the same (a copy, {one.num_examples} examples): it does not see "
        "their order",
        fix="Check how the table is indexed and added: each position needs a row of its own, as in "
        "x + table[:, : x.size(1)].",
        where=one.where,
        numbers={"num_examples": one.num_examples},
    )

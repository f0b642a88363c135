"""Faults in when training stops."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.seen import Seen


def stopping_on_noise(seen: Seen) -> Answer:
    """Reads the counter of early stopping from the source, and its values beside the best metric.

    It counts if nothing but its first assignment sets it, and the best value was seen to change
    while it was not set back.
    """
    if not any(one.num_read for one in seen.patience):
        return Unseen("no counter of evaluations without improvement was read")
    for one in seen.patience:
        if one.is_reset or not one.num_kept:
            continue
        return Found(
            evidence=f"{one.name} is never reset: it was {one.count} after the best value had "
            f"improved from {one.before:.4g} to {one.after:.4g}, so early stopping ({one.limit}) "
            "counts all evaluations without improvement, not those in a row",
            fix=f"Set {one.name} = 0 where the best value improves, to count evaluations in a row.",
            where=one.where,
            numbers={"count": one.count, "num_kept": one.num_kept},
        )
    return Sound("counters of evaluations without improvement are reset by an improvement")

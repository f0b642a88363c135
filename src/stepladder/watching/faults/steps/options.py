"""The fault of an option that an optimizer gets instead of its learning rate."""

from __future__ import annotations

from stepladder.watching.contract import Found
from stepladder.watching.seen.seen import Seen


def other_option(seen: Seen, *, is_low: bool) -> Found | None:
    """Find an option passed as a learning rate, while the learning rate of the script is unused.

    Args:
        is_low: it is lower than that learning rate; otherwise it is higher.
    """
    for one in seen.options:
        if (one.value < one.rate) is is_low:
            return Found(
                evidence=f"{one.kind} gets {one.passed} = {one.value:g} as its learning rate, "
                f"while {one.meant} = {one.rate:g} is not used for it",
                fix=f"Pass lr={one.meant}.",
                where=one.where,
                numbers={"rate": one.value, "unused_rate": one.rate},
            )
    return None

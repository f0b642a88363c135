"""Nested Python loops in the model that compute single values."""

from __future__ import annotations

from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import shown
from stepladder.watching.script.filled import SIZES
from stepladder.watching.seen.costs import FORWARD, Spot

_MIN_SHARE: Final = 0.1


def filled_causes(evidence: Evidence) -> list[Cause]:
    """Name nested loops in forward that fill a table, in each step with the same values or not."""
    samples = [
        one
        for one in evidence.samples
        if one.part == FORWARD and not one.is_validation and one.spots and one.spots[-1].fills
    ]
    share = evidence.share_of(sum(one.seconds for one in samples))
    if share < _MIN_SHARE:
        return []
    seconds: dict[Spot, float] = {}
    for one in samples:
        seconds[one.spots[-1]] = seconds.get(one.spots[-1], 0.0) + one.seconds
    spot = max(seconds, key=lambda key: seconds[key])
    of_sizes = [one for one in samples if one.spots[-1].fills == SIZES]
    is_constant = 2 * sum(one.seconds for one in of_sizes) > sum(one.seconds for one in samples)
    head = (
        f"{percent(share)} of the time is spent in nested Python loops over single values in the "
        f"model, mostly at {shown(spot)}"
    )
    if is_constant:
        text = (
            f"{head}, whose values depend on sizes alone: compute the table once, in __init__, "
            "keep it with register_buffer, and slice it in forward"
        )
        return [Cause(name="computed_once", share=share, text=text)]
    text = f"{head}: replace the loops by operations on whole tensors"
    return [Cause(name="vectorise", share=share, text=text)]

"""Stores that are copied as a whole whenever something is appended to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.growth import (
    growth_in_steps,
    halves_of,
    inputs_grow,
    slower_steps,
)
from stepladder.watching.causes.lines import heaviest, inner_loops, level_of, loop_of, shown
from stepladder.watching.seen.costs import FORWARD, OWN, SampleSeen, Spot

_MIN_SHARE: Final = 0.1
_MOST: Final = 0.5  # of the time, and of what later steps take more
_MIN_GROWTH: Final = 1.3  # of the time in the second half of the steps, over the first half
_CALLS: Final = ("append", "vstack", "hstack", "concatenate", "column_stack", "stack", "insert")
_LIBRARIES: Final = ("numpy/", "pandas/")


def store_causes(evidence: Evidence) -> list[Cause]:
    """Name lines that append to a tensor, an array, a table or a list by copying all of it.

    The time must be that of the concatenation itself. Either the line, in a loop within a step,
    replaces a store by itself and more; or its share of a step grows. A model may need all that it
    has concatenated, so its lines must grow.
    """
    loop = loop_of(evidence.samples)
    by_line: dict[Spot, list[SampleSeen]] = {}
    for one in evidence.samples:
        if one.spots and not one.is_validation and _is_joining(one):
            by_line.setdefault(one.spots[-1], []).append(one)
    groups: dict[str, list[SampleSeen]] = {}  # by what they concatenate with
    for spot, group in by_line.items():
        groups.setdefault(spot.joins, []).extend(_appending(evidence, spot, group, loop))
    for joins, group in groups.items():
        share = evidence.share_of(sum(one.seconds for one in group))
        if share < _MIN_SHARE:
            continue
        spot, _ = heaviest(_last_line(one) for one in group)
        growth = _growth(evidence, group)
        grown = f" ({growth}, as the total grows with the square of the number of entries)"
        text = (
            f"{percent(share)} of the time is spent at {shown(spot)}, where each call copies "
            f"everything stored so far{grown if growth else ''}: {_fix(joins)}"
        )
        lines = {spot.where for one in group for spot in one.spots[level_of(one.spots, loop) :]}
        return [
            Cause(
                name="allocated_once",
                share=share,
                text=text,
                lines=tuple(sorted(lines)),
                replaces=("constant_steps", "vectorise", "slow_line"),
            )
        ]
    return []


def _appending(
    evidence: Evidence, spot: Spot, group: list[SampleSeen], loop: Spot | None
) -> Sequence[SampleSeen]:
    """Return the samples of a line that copies a store, or nothing."""
    if _growth(evidence, group):
        return group
    return [
        one
        for one in group
        if one.part == OWN
        and spot.store
        and not (evidence.has_gpu and ".cpu(" in spot.text)  # it may wait for the GPU
        and inner_loops(one.spots, loop)
    ]


def _growth(evidence: Evidence, group: Sequence[SampleSeen]) -> str:
    """Return in words how the time of lines grows; empty if it does not, or may for other reasons.

    Their share of a step grows, or steps become slower, mostly because of them.
    """
    if not group or inputs_grow(evidence):
        return ""
    shares = growth_in_steps(evidence, group)
    if shares is not None:
        return f"{percent(shares[0])} of the first steps and {percent(shares[1])} of the last ones"
    steps = slower_steps(evidence)
    if steps is None or evidence.share_of(sum(one.seconds for one in group)) < _MOST:
        return ""
    stacks = evidence.seen.costs.stacks
    (first, last), (all_first, all_last) = (
        halves_of(some, stacks) for some in (group, evidence.samples)
    )
    is_most = last - first >= _MOST * (all_last - all_first) and last >= _MIN_GROWTH * first
    return f"the last steps take {steps[0]:.1f} times as long as the first ones" if is_most else ""


def _is_joining(sample: SampleSeen) -> bool:
    """Return whether the time is that of a concatenation, which is a built-in function in torch."""
    if not sample.spots[-1].joins or sample.part not in (OWN, FORWARD):
        return False
    return not sample.calls or (
        sample.calls[0].startswith(_LIBRARIES)
        and (sample.calls[0].startswith("pandas/") or sample.calls[0].endswith(_CALLS))
    )


def _last_line(sample: SampleSeen) -> SampleSeen:
    return SampleSeen(
        part=sample.part,
        is_validation=False,
        spots=sample.spots[-1:],
        calls=(),
        seconds=sample.seconds,
    )


def _fix(joins: str) -> str:
    """Return what to do instead."""
    library = joins.partition(".")[0]
    if joins == "+":
        return "use .append() or .extend() of a list, which copy nothing"
    if library in ("pd", "pandas") or joins == "append":
        return "append rows to a list and make one table of them at the end"
    if library in ("np", "numpy"):
        return (
            "append to a list and call np.concatenate once, or write into an array allocated "
            "beforehand"
        )
    return "append to a list and call torch.cat once, or write into a tensor allocated beforehand"

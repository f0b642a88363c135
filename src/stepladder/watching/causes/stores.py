"""Stores that are copied as a whole whenever something is appended to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.growth import growth_in_steps, inputs_grow
from stepladder.watching.causes.lines import heaviest, inner_loops, level_of, loop_of, shown
from stepladder.watching.seen.costs import FORWARD, OWN, SampleSeen, Spot

_MIN_SHARE: Final = 0.1
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
        growth = growth_in_steps(evidence, group) if not inputs_grow(evidence) else None
        share = evidence.share_of(sum(one.seconds for one in group))
        if share < _MIN_SHARE:
            continue
        spot, _ = heaviest(_last_line(one) for one in group)
        grown = ""
        if growth is not None:
            grown = (
                f" ({percent(growth[0])} of the first steps and {percent(growth[1])} of the last "
                "ones, as the total grows with the square of the number of entries)"
            )
        text = (
            f"{percent(share)} of the time is spent at {shown(spot)}, where each call copies "
            f"everything stored so far{grown}: {_fix(joins)}"
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
    if not inputs_grow(evidence) and growth_in_steps(evidence, group) is not None:
        return group
    return [
        one
        for one in group
        if one.part == OWN
        and spot.store
        and not (evidence.has_gpu and ".cpu(" in spot.text)  # it may wait for the GPU
        and inner_loops(one.spots, loop)
    ]


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

"""Compare a watched script with an earlier run of it: slower steps, and faults that are new."""

from __future__ import annotations

from typing import Final

from stepladder.records.watch import Regression, WatchReport
from stepladder.stats.speed import unpaired_ratio

CONFIDENCE: Final = 0.975
_MIN_BLOCKS: Final = 8
_SAME: Final = ("device", "threads", "batch_size", "waiting")
"""Facts on which the time of a step depends, and that have to be equal."""


def regression(before: WatchReport, after: WatchReport, *, max_slower: float) -> Regression:
    """Return what became worse.

    Steps are slower if the lower bound of the ratio of their times is above 1 + max_slower.

    Args:
        before: of the earlier run.
        after: of this one.
        max_slower: share by which a step may take longer, 0 or more.
    """
    known = {finding.check for finding in before.alarms}
    new = tuple(dict.fromkeys(one.check for one in after.alarms if one.check not in known))
    allowed = 1 + max_slower
    why_not = _why_not(before, after)
    if why_not is not None:
        return Regression(
            slower=None, allowed=allowed, is_slower=False, new_faults=new, why_not=why_not
        )
    slower = unpaired_ratio(before.block_s, after.block_s, confidence=CONFIDENCE)
    return Regression(
        slower=slower, allowed=allowed, is_slower=slower.low > allowed, new_faults=new
    )


def _why_not(before: WatchReport, after: WatchReport) -> str | None:
    for report, which in ((before, "the earlier run"), (after, "this run")):
        if len(report.block_s) < _MIN_BLOCKS:
            return f"{which} has {len(report.block_s)} blocks of steps; {_MIN_BLOCKS} are needed"
    for name in _SAME:
        one, two = before.facts.get(name), after.facts.get(name)
        if one != two:
            return f"{name.replace('_', ' ')} was {one} in the earlier run, and is {two} now"
    return None

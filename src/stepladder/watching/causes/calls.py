"""Modules that were timed: which of them are called in most steps, and what they take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stepladder.watching.causes.contract import Evidence
from stepladder.watching.seen.costs import CalledSeen

_OFTEN: Final = 0.5  # of the steps in which modules were timed


def share_of_calls(evidence: Evidence, calls: Iterable[CalledSeen]) -> float:
    """Return the share of modules in the steps in which they were timed."""
    seen = evidence.seen.costs.calls
    found = sum(one.seconds for one in calls)
    return min(found / seen.span_s, 1.0) if seen.span_s else 0.0


def called(one: CalledSeen) -> str:
    """Return a module in words."""
    return f"the {one.kind}" if one.name == one.kind else f"`{one.name}`"


def usual_calls(evidence: Evidence, calls: Iterable[CalledSeen]) -> list[CalledSeen]:
    """Return the modules that were called in most of these steps, the slowest first."""
    num = evidence.seen.costs.calls.num_steps
    found = [one for one in calls if num and one.num_steps >= _OFTEN * num]
    return sorted(found, key=lambda one: -one.seconds)

"""Check whether a climb's budget is large enough, before it starts and at its end."""

from __future__ import annotations

from typing import Final

from stepladder.ladder.lab import Lab
from stepladder.ladder.summary.wording import time_range
from stepladder.training.output.wording import rough_time

AFTER_FRAC: Final = 0.2
"""Of the budget, in addition to it, for the comparison with the original job at the end."""


def budget_warning(lab: Lab, training_s: tuple[float, float]) -> str | None:
    """Return a warning that the budget may be exceeded, and the time needed; None: it is enough.

    Args:
        training_s: the shortest and the longest time that the original job is predicted to take.
    """
    limit_s = lab.job.ladder.budget_s
    if limit_s is None:
        return None
    spent_s = limit_s - _left_s(lab, limit_s)
    if spent_s + training_s[1] <= limit_s:
        return None
    return (
        f"this may exceed the budget of {rough_time(limit_s)}: checking and measuring took "
        f"{rough_time(spent_s)}, and the original job takes about {time_range(*training_s)}. "
        "Rungs that are kept shorten the final training; the time is estimated again after each of "
        "them."
    )


def plan_words(lab: Lab, training_s: tuple[float, float]) -> str | None:
    """Return how long the final training takes after a kept rung; None: there is no budget.

    Args:
        training_s: the shortest and the longest time that the recipe so far is predicted to take.
    """
    limit_s = lab.job.ladder.budget_s
    if limit_s is None:
        return None
    spent_s = limit_s - _left_s(lab, limit_s)
    total_s = spent_s + training_s[0], spent_s + training_s[1]
    within = "within" if total_s[1] <= limit_s else "which may exceed"
    return (
        f"the final training now takes about {time_range(*training_s)}: about "
        f"{time_range(*total_s)} in all, {within} the budget of {rough_time(limit_s)}"
    )


def allows_after(lab: Lab, needed_s: float = 0.0) -> bool:
    """Return True if work after the final training fits into the budget and a fifth more."""
    limit_s = lab.job.ladder.budget_s
    if limit_s is None:
        return True
    return needed_s <= _left_s(lab, limit_s) + AFTER_FRAC * limit_s


def _left_s(lab: Lab, limit_s: float) -> float:
    return min(limit_s, lab.time_left() + lab.reserve_s)  # the reserve is for the training

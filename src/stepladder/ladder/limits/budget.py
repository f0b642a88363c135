"""What a climb's budget cannot hold: said before it is spent, and not begun once it is."""

from __future__ import annotations

from typing import Final

from stepladder.ladder.lab import Lab
from stepladder.records.profile import TrainingTime
from stepladder.training.output.wording import rough_time

AFTER_FRAC: Final = 0.2
"""Of the budget, beyond it, for what compares both ends after the training."""


def budget_warning(lab: Lab, training: TrainingTime, *, may_stop_early: bool) -> str | None:
    """Say that a budget cannot be kept, and what the least work takes; None: it can, or is none.

    Args:
        training: of the job as written, as the profile foretells it.
        may_stop_early: its end is not known: it may be sooner.
    """
    limit_s = lab.job.ladder.budget_s
    if limit_s is None:
        return None
    spent_s = limit_s - _left_s(lab, limit_s)
    least_s = spent_s + training.total_s
    if least_s <= limit_s:
        return None
    unless = ", or less if it stops early" if may_stop_early else ""
    return (
        f"the budget of {rough_time(limit_s)} cannot be kept: {rough_time(spent_s)} went into "
        f"checking and measuring, and one training takes about {rough_time(training.total_s)}; "
        f"so this takes at least about {rough_time(least_s)}{unless}, and no training follows that "
        "one"
    )


def allows_after(lab: Lab, needed_s: float = 0.0) -> bool:
    """Return True if something may begin once the training is done, by a budget and a fifth more."""
    limit_s = lab.job.ladder.budget_s
    if limit_s is None:
        return True
    return needed_s <= _left_s(lab, limit_s) + AFTER_FRAC * limit_s


def _left_s(lab: Lab, limit_s: float) -> float:
    return min(limit_s, lab.time_left() + lab.reserve_s)  # the reserve is for the training

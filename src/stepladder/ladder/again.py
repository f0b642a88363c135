"""What a climb on the same job decides anew: where it may take longer than the one before."""

from __future__ import annotations

from stepladder.ladder.lab import BUDGET_S
from stepladder.records.ladder import Decision, Trial


def allows_more(now_s: float | None, then_s: float | None) -> bool:
    """Say whether trials get more from a budget than from another.

    None ends no trial; trainings to the end take a share of the budget, without one of BUDGET_S.
    """
    share_s, then_share_s = (budget_s or BUDGET_S for budget_s in (now_s, then_s))
    if share_s != then_share_s:
        return share_s > then_share_s
    return now_s is None and then_s is not None


def may_now_decide(trial: Trial, budget_s: float | None) -> bool:
    """Say whether a trial that ended undecided has more to go on within another budget."""
    is_open = trial.verdict.decision is Decision.UNDECIDED
    return is_open and allows_more(budget_s, trial.budget_s)

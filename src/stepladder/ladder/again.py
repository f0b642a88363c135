"""What a climb on the same job decides anew: where it may take longer than the one before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stepladder.ladder.lab import BUDGET_S
from stepladder.records.ladder import Aim, Decision, Trial
from stepladder.rungs.contract import Rung

_OPEN: Final = (Decision.DROPPED, Decision.UNDECIDED, Decision.SKIPPED, Decision.NOT_HERE)


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


def on_other_ground(rungs: Sequence[Rung], trials: Sequence[Trial], *, recipe: str) -> list[Rung]:
    """List the rungs of TIME that were not kept on the recipe as it was then.

    Args:
        trials: the last word on each rung.
        recipe: key of the recipe as it is now.
    """
    decided = {trial.rung: trial for trial in trials}
    return [
        rung
        for rung in rungs
        if rung.aim is Aim.TIME
        and not rung.is_prediction_only
        and (trial := decided.get(rung.name)) is not None
        and trial.verdict.decision in _OPEN
        and trial.recipe != recipe
    ]

"""What a climb tries again on the same job, such as with a larger budget than before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepladder.config.options import LadderConfig
from stepladder.ladder.keys import prices_key
from stepladder.ladder.lab import BUDGET_S
from stepladder.records.ladder import Aim, Decision, Trial
from stepladder.rungs.contract import Rung
from stepladder.training.output.wording import clean

_OPEN: Final = (Decision.DROPPED, Decision.UNDECIDED, Decision.SKIPPED, Decision.NOT_HERE)


def allows_more(now_s: float | None, then_s: float | None) -> bool:
    """Return True if a budget allows trials more than another one does.

    None never ends a trial; full trainings may take a share of the budget, or of BUDGET_S.
    """
    share_s, then_share_s = (budget_s or BUDGET_S for budget_s in (now_s, then_s))
    if share_s != then_share_s:
        return share_s > then_share_s
    return now_s is None and then_s is not None


def more_to_try(
    done: Mapping[str, Any], trials: Sequence[Trial], options: LadderConfig
) -> str | None:
    """Return what a finished climb left open that can be tried now, as text, or None.

    Rungs that were skipped, that ran out of budget, or that would have written too much to disk;
    and those after a profile whose times did not add up.

    Args:
        done: the content of climb.json.
        trials: of its ledger.
    """
    left = ", ".join(clean(str(rung)) for rung in done.get("untried") or ())
    now_s, then_s = options.budget_s, done.get("budget_s")
    has_more_time = then_s is not None and (now_s is None or now_s > then_s)
    if left and has_more_time:
        return f"rungs that the budget left untried: {left}"
    last = {trial.rung: trial.verdict.decision for trial in trials}
    if Decision.UNDECIDED in last.values() and allows_more(now_s, then_s):
        return "undecided rungs"
    if options.try_all and not done.get("try_all"):
        return "skipped rungs"
    if done.get("why_no_advice"):
        return "rungs that were not tried because times did not add up"
    allowed = done.get("max_cache_bytes")
    if allowed is not None and options.max_cache_bytes > allowed:
        return "rungs that needed a larger ladder.max_cache_bytes"
    is_known = "prices" in done  # earlier versions did not write it
    return "another list of GPUs" if is_known and done["prices"] != prices_key(options) else None


def anew_words(done: Mapping[str, Any]) -> str:
    """Return which flags make a finished climb try more."""
    words = "--fresh tries everything again"
    if not done.get("untried") or done.get("budget_s") is None:
        return words
    return f"a larger --budget tries {', '.join(clean(str(r)) for r in done['untried'])}; {words}"


def may_now_decide(trial: Trial, budget_s: float | None) -> bool:
    """Return True if an undecided trial may be decided with another budget."""
    is_open = trial.verdict.decision is Decision.UNDECIDED
    return is_open and allows_more(budget_s, trial.budget_s)


def is_replaced(trial: Trial, *, by: Trial) -> bool:
    """Return True if a later trial replaces an earlier one.

    A kept trial stays if its rung is tried again on top of it, until that same change is undone.
    """
    is_kept = trial.verdict.decision is Decision.KEPT
    stays = is_kept and not (by.is_undone and by.change == trial.change)
    return trial.rung == by.rung and not stays


def on_other_ground(rungs: Sequence[Rung], trials: Sequence[Trial], *, recipe: str) -> list[Rung]:
    """List the rungs of aim TIME that were decided, but not kept, on an earlier recipe.

    Args:
        trials: the latest one on each rung.
        recipe: key of the current recipe.
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

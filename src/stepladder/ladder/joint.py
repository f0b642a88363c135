"""Compare the recipe with all kept rungs with the original one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.comparison import Comparison, compare
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import (
    TrialFailed,
    Watchdog,
    guarded,
)
from stepladder.ladder.summary.wording import points
from stepladder.ladder.verdict import Evidence, judge_quality
from stepladder.records.climb import JointChange
from stepladder.records.ladder import Aim, Decision, Exactness


class Joint(NamedTuple):
    """Result of testing all kept rungs together.

    Attributes:
        loses: what is lost, as text, if it is more than allowed; None: nothing is.
    """

    change: JointChange
    loses: str | None = None


def compare_together(lab: Lab, before: Recipe, after: Recipe) -> Joint:
    """Compare the recipe with all kept rungs with the original recipe.

    Known trainings are not repeated. If they cannot be compared, the rungs are kept, with the
    reason in the result.
    """
    watchdog, options = Watchdog(time_left=lab.time_left), lab.job.ladder
    if options.aim is not ClimbAim.TIME:  # the aim is accuracy: none may be lost
        options = replace(options, max_accuracy_loss=0.0)
    diverges: str | None = None
    comparison = Comparison()
    try:
        with guarded(watchdog):
            watchdog.expect(2 * (lab.forecast_s(before) + lab.forecast_s(after)))
            try:
                comparison = compare(lab, before, after)
            except TrialFailed as failure:  # and the original job does not fail
                diverges = failure.what
    except TrialFailed as failure:
        return Joint(JointChange(why_not=failure.what))
    if diverges is not None:
        return Joint(JointChange(why_not=diverges), loses=f"it fails: {diverges}")
    change = JointChange(
        accuracy=comparison.accuracy,
        loss=comparison.loss,
        num_trainings=comparison.num_seeds,
        is_replayed=comparison.is_replayed,
        unsure=_unsure(comparison, options),
        why_not=comparison.why_not,
    )
    return Joint(change, loses=_too_much(comparison, options))


def _unsure(comparison: Comparison, options: LadderConfig) -> str | None:
    """Return a remark if the bound does not exclude a loss above the allowed one; None: it does.

    The bound of each single rung does, or it would not have been kept; bounds do not add up.
    """
    if comparison.accuracy is None and comparison.loss is None:
        return None
    evidence = Evidence(
        aim=Aim.TIME,
        exactness=Exactness.STATISTICAL,
        accuracy=comparison.accuracy,
        loss=comparison.loss,
        loss_before=comparison.loss_before,
        num_held_out=comparison.num_held_out,
    )
    found = judge_quality(evidence, options)
    return found.reason if found.decision is Decision.UNDECIDED else None


def _too_much(comparison: Comparison, options: LadderConfig) -> str | None:
    """Return what is lost according to the estimates, if it is more than max_accuracy_loss."""
    accuracy, loss, allowed = comparison.accuracy, comparison.loss, options.max_accuracy_loss
    if accuracy is not None:
        if accuracy.estimate >= -allowed:
            return None
        return f"it loses {points(-accuracy.estimate).lstrip('+')} points of accuracy"
    if loss is None or comparison.loss_before is None:
        return None
    is_more = loss.estimate > allowed * abs(comparison.loss_before)
    return f"the loss rises by {loss.estimate:.2g}" if is_more else None

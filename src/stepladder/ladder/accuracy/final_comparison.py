"""The loss against the job as written, tested again once every rung has its verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.ladder.accuracy.comparison import Comparison, compare
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.guard import TrialFailed, Watchdog, guarded
from stepladder.ladder.summary.wording import points
from stepladder.ladder.trial import apply_change
from stepladder.ladder.verdict import Evidence, judge_quality
from stepladder.records.climb import JointChange
from stepladder.records.ladder import Aim, Decision, Exactness, Trial


class Joint(NamedTuple):
    """What was found of all kept rungs together.

    Attributes:
        loses: what is lost, in words, where it is more than may be; None: it holds.
    """

    change: JointChange
    loses: str | None = None


def compare_together(lab: Lab, before: Recipe, after: Recipe) -> Joint:
    """Compare the recipe with everything that was kept with the job as written.

    Trainings that are known are not repeated. What cannot be compared holds, and says why.
    """
    watchdog, options = Watchdog(time_left=lab.time_left), lab.job.ladder
    if options.aim is not ClimbAim.TIME:  # more accuracy is what it is for: none may be lost
        options = replace(options, max_accuracy_loss=0.0)
    diverges: str | None = None
    comparison = Comparison()
    try:
        with guarded(watchdog):
            watchdog.expect(2 * (lab.forecast_s(before) + lab.forecast_s(after)))
            try:
                comparison = compare(lab, before, after)
            except TrialFailed as failure:  # where the job as written does not
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
    """Say that the bound does not exclude more than may be lost; None: it does.

    Each rung's own bound does, or it would not have been kept; those of several do not add up.
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
    """Say what is lost, by the estimates, where it is more than max_accuracy_loss."""
    accuracy, loss, allowed = comparison.accuracy, comparison.loss, options.max_accuracy_loss
    if accuracy is not None:
        if accuracy.estimate >= -allowed:
            return None
        return f"it loses {points(-accuracy.estimate).lstrip('+')} points of accuracy"
    if loss is None or comparison.loss_before is None:
        return None
    is_more = loss.estimate > allowed * abs(comparison.loss_before)
    return f"the loss rises by {loss.estimate:.2g}" if is_more else None


def with_changes(recipe: Recipe, kept: tuple[Trial, ...]) -> Recipe:
    """Change a recipe as each of the trials did, in order.

    Raises:
        UsageError: if the changes do not fit together.
    """
    for trial in kept:
        recipe = apply_change(recipe, trial.change)
    return recipe


def undone_trial(trial: Trial, reason: str) -> Trial:
    """Give a kept trial as one that was dropped in the end."""
    verdict = replace(trial.verdict, decision=Decision.DROPPED, reason=reason)
    return replace(trial, verdict=verdict, is_undone=True)

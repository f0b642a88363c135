"""The sections of the ladder on a report page."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from stepladder.ladder.summary.wording import (
    gain_bounds,
    loss_interval,
    points_interval,
    time_range,
    together_words,
)
from stepladder.records.climb import ClimbSummary, JointChange, NextStep
from stepladder.records.ladder import Aim, Decision
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.headline import Headline
from stepladder.reporting.ladder.charts import prediction_chart
from stepladder.reporting.ladder.climb_data import ClimbRecords, positive
from stepladder.reporting.ladder.picture import LadderPicture, ladder_picture
from stepladder.reporting.ladder.profile import ProfileView, profile_view
from stepladder.reporting.ladder.table import (
    LadderRow,
    calibration_note,
    has_undecided,
    ladder_headline,
    ladder_rows,
)
from stepladder.reporting.ladder.trials import TrialDetail, trial_details
from stepladder.training.output.wording import rough_time

_OTHER_MACHINES = frozenset({3, 9, 10, 11})  # levels of rungs that need other hardware
_ONE_TIME_WORDS = {
    "features": "cached features",
    "store": "decoded copy",
    "compile": "compilation",
}


@dataclass(frozen=True, kw_only=True)
class LadderPage:
    """The sections of a climb, before the final training.

    Attributes:
        not_again: rungs that were not tried again because the time ran out; or empty.
        end_note: what the time of the last row consists of; empty if the climb has not ended.
        found_note: how the time of the final training differs from it; empty if it does not.
        together: effect of all kept rungs compared with the original job; empty if not tested.
        was_repeated: a rung was tried more than once.
        num_elsewhere: number of trials of other climbs in the folder, which are not shown.
        beyond: why no step beyond this machine is predicted, if the climb ended.
        next_gain: predicted gain of the next step over the result, or empty.
        is_for_accuracy: remedies for a poor fit were tried, not speed-ups.
    """

    head: Headline
    picture: LadderPicture | None
    rows: tuple[LadderRow, ...]
    has_undecided: bool
    scatter: Markup | None
    calibration: str
    details: tuple[TrialDetail, ...]
    profile: ProfileView | None
    untried: tuple[LadderRow, ...]
    not_again: str
    end_note: str
    found_note: str
    together: str
    was_repeated: bool
    num_elsewhere: int
    beyond: tuple[LadderRow, ...]
    next_step: NextStep | None
    next_gain: str
    is_for_accuracy: bool = False


def ladder_page(climb: ClimbRecords, *, status: str, train_s: float | None) -> LadderPage:
    """Return the sections of a climb.

    Args:
        status: status of the final training, or unfinished.
        train_s: training time of the final training in seconds.
    """
    step = climb.summary.next
    rungs = [trial.rung for trial in climb.trials]
    never = {t.rung for t in climb.untried if t.verdict.decision is Decision.UNTRIED}
    end_note, found_note = _end_notes(climb.summary, train_s)
    return LadderPage(
        head=ladder_headline(climb, status),
        picture=ladder_picture(climb),
        rows=tuple(ladder_rows(climb.trials)),
        has_undecided=has_undecided(climb),
        scatter=prediction_chart(climb.trials),
        calibration=calibration_note(climb),
        details=tuple(trial_details(climb.trials)),
        profile=profile_view(climb.profiles),
        untried=tuple(ladder_rows(climb.untried)),
        not_again=", ".join(name for name in climb.summary.untried if name not in never),
        end_note=end_note,
        found_note=found_note,
        together=_together(climb.summary.together),
        was_repeated=len(set(rungs)) < len(rungs),
        num_elsewhere=climb.num_elsewhere,
        beyond=tuple(ladder_rows([t for t in climb.untried if t.level in _OTHER_MACHINES])),
        next_step=_shown(step) if step else None,
        next_gain=_next_gain(climb),
        is_for_accuracy=climb.summary.aim is Aim.ACCURACY,
    )


def _end_notes(summary: ClimbSummary, train_s: float | None) -> tuple[str, str]:
    """Return what the total time consists of: for the ladder, and for the final training."""
    of_ladder, of_training = _total_notes(summary, train_s)
    if summary.result is None or summary.result.paired_s is None:
        return of_ladder, of_training
    said = "The last row is the result, timed in turn with the original job after the climb."
    return said, of_training.replace(" above.", ".")


def _total_notes(summary: ClimbSummary, train_s: float | None) -> tuple[str, str]:
    """Return what the total of the final training consists of."""
    total_s = positive(summary.result.total_s) if summary.result else None
    if total_s is None:
        return "", ""
    outside_s = total_s - train_s if train_s else 0.0
    if train_s is None or outside_s < 0.01 * total_s:
        return "The last row is the total time of the final training.", ""
    times = (outside_s, train_s, total_s)
    outside, own, whole = (rough_time(value).replace(" ", "\u00a0") for value in times)
    parts = summary.result.one_time_s if summary.result else {}
    if parts.keys() <= {"features"}:
        return (
            f"The last row is the final training ({own}) plus the time to compute its cached "
            f"features ({outside}).",
            f"With {outside} to compute the cached features, the total is the {whole} above.",
        )
    names = ", ".join(_ONE_TIME_WORDS.get(name, short(name)) for name in sorted(parts))
    return (
        f"The last row is the final training ({own}) plus {outside} of one-time work ({names}).",
        f"With {outside} of one-time work ({names}), the total is the {whole} above.",
    )


def _together(change: JointChange | None) -> str:
    """Return the effect of all kept rungs on held-out examples, in a sentence."""
    if change is None:
        return ""
    found = ""
    if change.accuracy is not None:
        found = f": accuracy {points_interval(change.accuracy)} points"
    elif change.loss is not None:
        found = f": loss {loss_interval(change.loss)}"
    return f"All kept rungs together, {short(together_words(change), 400)}{found}."


def _next_gain(climb: ClimbRecords) -> str:
    """Return the predicted gain of the next step, with both times; empty without a next step."""
    step, result = climb.summary.next, climb.summary.result
    expected = positive(step.gain) if step else None
    if step is None or expected is None:
        return ""
    low, high = positive(step.gain_low) or expected, positive(step.gain_high) or expected
    now_s = positive(result.total_s) if result else None
    times = f" ({rough_time(now_s)} → {time_range(now_s / high, now_s / low)})" if now_s else ""
    return f"{gain_bounds(low, high)}{times}"


def _shown(step: NextStep) -> NextStep:
    return NextStep(rung=short(step.rung), text=short(step.text.strip().rstrip("."), 400))

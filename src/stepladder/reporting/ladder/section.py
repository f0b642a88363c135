"""The ladder's sections of the page."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from stepladder.ladder.summary.wording import gain, loss_interval, points_interval, together_words
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

_OTHER_MACHINES = frozenset({3, 9, 10, 11})  # levels: an accelerator, a larger one, more of them
_ONE_TIME_WORDS = {
    "features": "features that lay ready",
    "store": "the decoded copy",
    "compile": "compiling",
}


@dataclass(frozen=True, kw_only=True)
class LadderPage:
    """What the page shows of a climb, before the training at its end.

    Attributes:
        not_again: rungs that would have been tried once more, had there been time; or empty.
        end_note: what the time of the last row is made of; empty where the climb did not end.
        found_note: how the training's own time differs from that; empty where it does not.
        together: what all kept rungs change against the job as written; empty where not tested.
        was_repeated: a rung was tried more than once.
        num_elsewhere: trials of other climbs in the folder, which are not shown.
        beyond: why nothing beyond this machine was predicted, where the climb ended.
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
    """Put the ladder's sections together.

    Args:
        status: of the training at the end, or unfinished.
        train_s: seconds of that training by its own clock.
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
    """Say what the end-to-end time is made of, for the picture and for the training itself."""
    total_s = positive(summary.result.total_s) if summary.result else None
    if total_s is None:
        return "", ""
    outside_s = total_s - train_s if train_s else 0.0
    if train_s is None or outside_s < 0.01 * total_s:
        return "The last row is the training below, timed from end to end.", ""
    times = (outside_s, train_s, total_s)
    outside, own, whole = (rough_time(value).replace(" ", "\u00a0") for value in times)
    parts = summary.result.one_time_s if summary.result else {}
    if parts.keys() <= {"features"}:
        return (
            f"The last row is the training below: {own} by its own clock, and {outside} that "
            "features took when they were made; the training found them ready, but they count.",
            f"It found features ready that had taken {outside}; with them it is the {whole} above.",
        )
    names = ", ".join(_ONE_TIME_WORDS.get(name, short(name)) for name in sorted(parts))
    return (
        f"The last row is the training below: {own} by its own clock, and {outside} of work that "
        f"is done once and lies outside it ({names}).",
        f"With {outside} of work that is done once ({names}) it is the {whole} above.",
    )


def _together(change: JointChange | None) -> str:
    """Say what all that was kept changes on held-out examples, in a sentence."""
    if change is None:
        return ""
    found = ""
    if change.accuracy is not None:
        found = f": accuracy {points_interval(change.accuracy)} points"
    elif change.loss is not None:
        found = f": loss {loss_interval(change.loss)}"
    return f"All that was kept, {short(together_words(change), 400)}{found}."


def _next_gain(climb: ClimbRecords) -> str:
    """Say the predicted gain of the next step, and from which time to which; empty without one."""
    step, result = climb.summary.next, climb.summary.result
    expected = positive(step.gain) if step else None
    if expected is None:
        return ""
    now_s = positive(result.total_s) if result else None
    times = f" ({rough_time(now_s)} → {rough_time(now_s / expected)})" if now_s else ""
    return f"{gain(expected)}{times}"


def _shown(step: NextStep) -> NextStep:
    return NextStep(rung=short(step.rung), text=short(step.text.strip().rstrip("."), 400))

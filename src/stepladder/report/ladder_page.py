"""The ladder's sections of the page."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from stepladder.ladder.wording import gain
from stepladder.records.climb import NextStep
from stepladder.report.headline import Headline
from stepladder.report.heatmap import short
from stepladder.report.ladder import ClimbRecords, positive
from stepladder.report.ladder_charts import prediction_chart
from stepladder.report.ladder_picture import LadderPicture, ladder_picture
from stepladder.report.ladder_profile import ProfileView, profile_view
from stepladder.report.ladder_table import (
    LadderRow,
    calibration_note,
    has_undecided,
    ladder_headline,
    ladder_rows,
)
from stepladder.report.ladder_trials import TrialDetail, trial_details


@dataclass(frozen=True, kw_only=True)
class LadderPage:
    """What the page shows of a climb, before the training at its end.

    Attributes:
        next_gain: predicted gain of the next step, or empty.
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
    next_step: NextStep | None
    next_gain: str


def ladder_page(climb: ClimbRecords, *, status: str) -> LadderPage:
    """Put the ladder's sections together.

    Args:
        status: of the training at the end, or unfinished.
    """
    step = climb.summary.next
    expected = positive(step.gain) if step else None
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
        next_step=_shown(step) if step else None,
        next_gain=gain(expected) if expected else "",
    )


def _shown(step: NextStep) -> NextStep:
    return NextStep(rung=short(step.rung), text=short(step.text.strip().rstrip("."), 400))

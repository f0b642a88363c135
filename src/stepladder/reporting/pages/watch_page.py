"""watch.html: what was seen of a script, on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from stepladder.checks.wording import WORDS
from stepladder.records import write_bytes
from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.headline import TimeSpent, spent
from stepladder.reporting.html import template
from stepladder.training.output.wording import duration
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.wording import (
    PHASE_WORDS,
    clearing_words,
    next_words,
    overhead_words,
    step_words,
)

WATCH_PAGE = "watch.html"
_QUIET = (Outcome.PASSED, Outcome.NOT_APPLICABLE)


@dataclass(frozen=True, kw_only=True)
class AlarmRow:
    """One alarm as the page shows it."""

    style: str
    outcome: str
    name: str
    where: str
    evidence: str
    fix: str
    source: str


def write_watch_page(report: WatchReport, folder: Path) -> Path:
    """Write FOLDER/watch.html: self-contained, without scripts."""
    path = folder / WATCH_PAGE
    write_bytes(path, render_watch(report).encode("utf-8", "replace"))
    return path


def render_watch(report: WatchReport) -> str:
    """Make the page."""
    alarms = [f for f in report.findings if f.outcome not in _QUIET]
    quiet = [f for f in report.findings if f.outcome in _QUIET]
    return template("watch.html").render(
        report=report,
        name=" ".join([_script(report.script), *report.args]),
        figure=_figure(report),
        caption=_caption(report),
        alarms=[_row(finding) for finding in alarms],
        quiet=[_row(finding) for finding in quiet],
        time=_time(report),
        device=_device(report),
        loss=_loss_chart(report),
        next=next_words(report),
        step=step_words(report),
        overhead=overhead_words(report),
        clearing=clearing_words(report.clearing) if report.clearing is not None else None,
        replays=[_replay(one.name, one.example_s, one.why_not) for one in report.replays],
    )


def _script(given: str) -> str:
    """Name the script as it was given, without the folders of one machine."""
    return Path(given).name if Path(given).is_absolute() else given


def _figure(report: WatchReport) -> str:
    num = len(report.alarms)
    if not report.num_steps:
        return "Nothing to see"
    return f"{num} alarm{'' if num == 1 else 's'}" if num else "No alarm"


def _caption(report: WatchReport) -> str:
    state = report.ending if report.is_complete else "it still ran as this was written"
    steps = f"{report.num_steps:,} step{'' if report.num_steps == 1 else 's'}"
    return f"{steps} of the optimiser in {duration(report.wall_s)}; {state}."


def _row(finding: Finding) -> AlarmRow:
    source = next((d.source for d in DETECTORS if d.name == finding.check), "")
    return AlarmRow(
        style=finding.outcome.value,
        outcome=WORDS[finding.outcome].lower(),
        name=finding.check,
        where=finding.where or "",
        evidence=short(finding.evidence, 500),
        fix=short(finding.fix, 400),
        source=source,
    )


def _time(report: WatchReport) -> TimeSpent | None:
    sizes = {time.name: time.total_s for time in report.times}
    return spent("Host, wall time", sizes, words=PHASE_WORDS, say=_rough)


def _device(report: WatchReport) -> TimeSpent | None:
    sizes = {t.name: t.device_s for t in report.times if t.device_s is not None}
    return spent("Device, a sampled step", sizes, words=PHASE_WORDS, say=_rough)


def _rough(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else duration(seconds)


def _loss_chart(report: WatchReport) -> Markup | None:
    series = Series(
        name="loss",
        style="train",
        xs=[float(s) for s in report.loss_steps],
        ys=list(report.loss_values),
    )
    if len(report.loss_steps) < 2:
        return None
    return line_chart([series], title="Loss by step", x_label="step", may_be_log=True)


def _replay(name: str, example_s: float | None, why_not: str | None) -> tuple[str, str]:
    words = f"{1e3 * example_s:.3g} ms an example" if example_s is not None else why_not or ""
    return name, words

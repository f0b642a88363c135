"""checks.html: whether a job is sound, on one page; the same section stands in report.html."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.checks.order import CHECKS
from stepladder.checks.report_file import read_checks
from stepladder.errors import DataError
from stepladder.records import write_bytes
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.reporting.html import template
from stepladder.reporting.pages.finding_rows import QUIET, FindingRow, finding_row, ordered

PAGE_FILE = "checks.html"


@dataclass(frozen=True, kw_only=True)
class ChecksView:
    """The findings of one job: what needs a person first, then what passed.

    Attributes:
        figure, caption: the headline.
        alarms: failed, warned or could not run; quiet: the rest.
        left_out: checks for which no time was left.
    """

    figure: str
    caption: str
    tier: str
    alarms: tuple[FindingRow, ...]
    quiet: tuple[FindingRow, ...]
    left_out: tuple[str, ...]


def write_checks_page(run: Path) -> Path:
    """Write RUN/checks.html from checks.json.

    Raises:
        DataError: if there is no checks.json that can be read.
    """
    view = checks_view(run)
    if view is None:
        raise DataError(
            "the folder holds no checks.json",
            where=str(run),
            fix="Run `stepladder check` with this --run.dir.",
        )
    path = run / PAGE_FILE
    page = template("checks_page.html").render(checks=view, name=run.name)
    write_bytes(path, page.encode("utf-8", "replace"))
    return path


def checks_view(run: Path) -> ChecksView | None:
    """Return what a page shows of a run's checks; None where there are none."""
    report = read_checks(run)
    return None if report is None else view_of(report)


def view_of(report: CheckReport) -> ChecksView:
    """Return what a page shows of these findings."""
    counts = Counter(finding.outcome for finding in report.findings)
    num_looked = sum(counts.values()) - counts[Outcome.NOT_APPLICABLE]
    groups = ordered(report.findings)
    return ChecksView(
        figure=f"{counts[Outcome.PASSED]} of {num_looked}",
        caption=_caption(counts, len(report.left_out)),
        tier=report.tier,
        alarms=tuple(_row(group) for group in groups if group[0].outcome not in QUIET),
        quiet=tuple(_row(group) for group in groups if group[0].outcome in QUIET),
        left_out=report.left_out,
    )


def _row(group: Sequence[Finding]) -> FindingRow:
    """Write a finding with the reason of its check; several checks have no reason in common."""
    names = {finding.check for finding in group}
    check = next((check for check in CHECKS if names == {check.name}), None)
    return finding_row(
        group, reason=check.reason if check else "", source=check.source if check else ""
    )


def _caption(counts: Counter[Outcome], num_left_out: int) -> str:
    words = {
        Outcome.FAILED: "failed",
        Outcome.WARNED: "warned",
        Outcome.COULD_NOT_RUN: "could not run",
        Outcome.NOT_APPLICABLE: "had nothing to look at",
    }
    parts = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    parts += [f"no time was left for {num_left_out}"] if num_left_out else []
    return "checks passed" + (f"; {', '.join(parts)}" if parts else "")

"""checks.html: the results of the checks of a job; report.html has the same section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.checks.order import CHECKS
from stepladder.checks.report_file import read_checks
from stepladder.checks.wording import checked_when
from stepladder.errors import DataError
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.reporting.pages.finding_rows import QUIET, FindingRow, finding_row, ordered

PAGE_FILE = "checks.html"


@dataclass(frozen=True, kw_only=True)
class ChecksView:
    """The findings of one job: first those to act on, then those that passed.

    Attributes:
        figure, caption: the headline.
        alarms: failed, warned or could not run; quiet: the rest.
        left_out: checks that were skipped because the time limit was reached.
        when: when they ran; None: not recorded.
    """

    figure: str
    caption: str
    tier: str
    alarms: tuple[FindingRow, ...]
    quiet: tuple[FindingRow, ...]
    left_out: tuple[str, ...]
    when: str | None

    @property
    def has_pairs(self) -> bool:
        """Whether a finding shows pictures."""
        return any(row.pairs for row in self.alarms)

    def without_pairs(self) -> ChecksView:
        """Return the findings without their pictures, with the names of the examples."""
        return replace(self, alarms=tuple(replace(row, pairs=()) for row in self.alarms))


def write_checks_page(run: Path) -> Path:
    """Write RUN/checks.html from checks.json.

    Raises:
        DataError: if checks.json does not exist or cannot be read.
    """
    view = checks_view(run)
    if view is None:
        raise DataError(
            "the run has no results of checks: its folder has no readable checks.json",
            where=str(run),
            fix=f"Check the job first, with the same folder: stepladder check … --run.dir {run}",
        )
    path = run / PAGE_FILE
    page = template("checks_page.html").render(checks=view, name=run.name)
    save_page(path, page)
    return path


def checks_view(run: Path) -> ChecksView | None:
    """Return the checks of a run for a page; None without checks.json."""
    report = read_checks(run)
    return None if report is None else view_of(report)


def view_of(report: CheckReport) -> ChecksView:
    """Return findings for a page."""
    counts = Counter(finding.outcome for finding in report.findings)
    num_applicable = sum(counts.values()) - counts[Outcome.NOT_APPLICABLE]
    groups = ordered(report.findings)
    return ChecksView(
        figure=f"{counts[Outcome.PASSED]} of {num_applicable}",
        caption=_caption(counts, len(report.left_out)),
        tier=report.tier,
        alarms=tuple(_row(group) for group in groups if group[0].outcome not in QUIET),
        quiet=tuple(_row(group) for group in groups if group[0].outcome in QUIET),
        left_out=report.left_out,
        when=checked_when(report),
    )


def _row(group: Sequence[Finding]) -> FindingRow:
    """Return a finding with the reason of its check; a group of checks has no reason."""
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
        Outcome.NOT_APPLICABLE: "not applicable",
    }
    parts = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    parts += [f"{num_left_out} skipped (time limit)"] if num_left_out else []
    return "checks passed" + (f"; {', '.join(parts)}" if parts else "")

"""checks.html: whether a job is sound, on one page; the same section stands in report.html."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from stepladder.checks.kept import read_checks
from stepladder.checks.order import CHECKS
from stepladder.checks.wording import MAX_EXAMPLES, WORDS
from stepladder.errors import DataError
from stepladder.records import write_bytes
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.report.heatmap import short

PAGE_FILE = "checks.html"
_ORDER = (
    Outcome.FAILED,
    Outcome.WARNED,
    Outcome.COULD_NOT_RUN,
    Outcome.PASSED,
    Outcome.NOT_APPLICABLE,
)


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding as the page shows it."""

    outcome: str
    style: str
    name: str
    reason: str
    source: str
    evidence: str
    where: str
    fix: str
    examples: tuple[str, ...]
    took: str


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
    page = _environment().get_template("checks_page.html").render(checks=view, name=run.name)
    write_bytes(path, page.encode("utf-8", "replace"))
    return path


def checks_view(run: Path) -> ChecksView | None:
    """Give what a page shows of a run's checks; None where there are none."""
    report = read_checks(run)
    return None if report is None else view_of(report)


def view_of(report: CheckReport) -> ChecksView:
    """Give what a page shows of these findings."""
    counts = Counter(finding.outcome for finding in report.findings)
    rows = {outcome: [] for outcome in Outcome}  # type: dict[Outcome, list[FindingRow]]
    for finding in report.findings:
        rows[finding.outcome].append(_row(finding))
    num_looked = sum(counts.values()) - counts[Outcome.NOT_APPLICABLE]
    ordered = [(outcome, row) for outcome in _ORDER for row in rows[outcome]]
    is_quiet = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
    return ChecksView(
        figure=f"{counts[Outcome.PASSED]} of {num_looked}",
        caption=_caption(counts),
        tier=report.tier,
        alarms=tuple(row for outcome, row in ordered if outcome not in is_quiet),
        quiet=tuple(row for outcome, row in ordered if outcome in is_quiet),
        left_out=report.left_out,
    )


def _caption(counts: Counter[Outcome]) -> str:
    words = {
        Outcome.FAILED: "failed",
        Outcome.WARNED: "warned",
        Outcome.COULD_NOT_RUN: "could not run",
        Outcome.NOT_APPLICABLE: "had nothing to look at",
    }
    parts = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    return "checks passed" + (f"; {', '.join(parts)}" if parts else "")


def _row(finding: Finding) -> FindingRow:
    check = next((check for check in CHECKS if check.name == finding.check), None)
    seen = f" ({finding.coverage})" if finding.coverage else ""
    return FindingRow(
        outcome=WORDS[finding.outcome].lower(),
        style=finding.outcome.value,
        name=finding.check,
        reason=check.reason if check else "",
        source=check.source if check else "",
        evidence=short(f"{finding.evidence}{seen}", 500),
        where=finding.where or "",
        fix=short(finding.fix, 400),
        examples=tuple(short(example, 80) for example in finding.examples[:MAX_EXAMPLES]),
        took="" if finding.took_s is None else f"{finding.took_s:.2f} s",
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("stepladder.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    return environment

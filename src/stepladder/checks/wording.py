"""Format findings as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from textwrap import wrap
from typing import Final

from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.training.output.wording import duration

WORDS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.WARNED: "warned",
    Outcome.NOT_APPLICABLE: "n/a",
    Outcome.COULD_NOT_RUN: "could not run",
}
_NAME_WIDTH: Final = 24
_INDENT: Final = " " * 16
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
MAX_EXAMPLES: Final = 6
_MAX_NAMES: Final = 4


def listed(names: Iterable[str]) -> str:
    """Join the first few names for a sentence."""
    names = [*names]
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")


def finding_lines(finding: Finding) -> str:
    """Format a finding: outcome, check and evidence, then fix and examples on their own lines."""
    where = f"{finding.where}: " if finding.where else ""
    seen = f" (checked: {finding.coverage})" if finding.coverage else ""
    lines = [
        f"{WORDS[finding.outcome]:<14}  {finding.check:<{_NAME_WIDTH}}"
        f"{where}{finding.evidence}{seen}"
    ]
    if finding.fix and finding.outcome not in (Outcome.PASSED, Outcome.NOT_APPLICABLE):
        lines.append(f"{_INDENT}→ {finding.fix}")
    if finding.examples and finding.is_alarm:
        shown = ", ".join(finding.examples[:MAX_EXAMPLES])
        more = len(finding.examples) - MAX_EXAMPLES
        lines.append(f"{_INDENT}  such as {shown}" + (f" and {more} more" if more > 0 else ""))
    return "\n".join(lines)


def folded(findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Group checks that could not run for the same reason; other findings are not grouped.

    If a loss raises, every check that calls it reports it. Reasons that differ only in numbers,
    such as batch sizes, are the same.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for idx, finding in enumerate(findings):
        reason = _NUMBER.sub("0", finding.evidence)
        is_one = finding.outcome is not Outcome.COULD_NOT_RUN
        same = (idx,) if is_one else (reason, finding.where, finding.fix)
        groups.setdefault(same, []).append(finding)
    return [tuple(group) for group in groups.values()]


def group_name(group: Sequence[Finding]) -> str:
    """Return the name of a group of `folded`: the check, or the number of checks."""
    return group[0].check if len(group) == 1 else f"{len(group)} checks"


def group_lines(group: Sequence[Finding]) -> str:
    """Format a group of `folded` like `finding_lines`, with the names of its checks below."""
    lines = finding_lines(replace(group[0], check=group_name(group)))
    if len(group) == 1:
        return lines
    names = ", ".join(finding.check for finding in group)
    width = 100 - len(_INDENT) - 2
    return "\n".join([lines, *(f"{_INDENT}  {line}" for line in wrap(names, width))])


def total_line(report: CheckReport) -> str:
    """Return the counts of outcomes, in one line."""
    counts = Counter(finding.outcome for finding in report.findings)
    words = {
        Outcome.FAILED: "failed",
        Outcome.WARNED: "warned",
        Outcome.PASSED: "passed",
        Outcome.NOT_APPLICABLE: "not applicable",
        Outcome.COULD_NOT_RUN: "could not run",
    }
    parts = [f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome]]
    line = f"{', '.join(parts) or 'no check ran'}, in {_seconds(report.took_s)}"
    num_stuck = counts[Outcome.COULD_NOT_RUN]
    num_missing = num_stuck + len(report.left_out)
    if num_missing:
        line = f"incomplete ({num_missing} of {num_missing + _num_ran(report)} did not run): {line}"
    if report.left_out:
        line += f"; no time was left for {', '.join(report.left_out)}"
    return line


def not_run_line(report: CheckReport | str, *, command: str) -> str | None:
    """Return in one line which checks before a training did not run, or None if all of them did.

    Args:
        report: or why no check ran.
        command: what to type to run them.
    """
    again = f"run them with: {command}"
    if isinstance(report, str):
        return f"checks: none ran, as {report}; {again}"
    stuck = [
        finding.check for finding in report.findings if finding.outcome is Outcome.COULD_NOT_RUN
    ]
    num_missing = len(stuck) + len(report.left_out)
    if not num_missing:
        return None
    reasons = [
        f"{reason} {listed(names)}"
        for reason, names in (
            ("no time was left for", report.left_out),
            ("these could not run:", stuck),
        )
        if names
    ]
    num_all = num_missing + _num_ran(report)
    return f"checks: {num_missing} of {num_all} did not run ({'; '.join(reasons)}); {again}"


def earlier_line(report: CheckReport, *, before: datetime) -> str | None:
    """Return from when the results are that an earlier call found, or None if it found nothing.

    Args:
        before: the start of this call, with its time zone.
    """
    earlier = [time for time in _times(report) if time < before]
    if not earlier:
        return None
    num, num_all = len(earlier), len(report.findings)
    which = "all results are" if num == num_all else f"{num} of {num_all} results are"
    return f"{which} from {_span(earlier)}: job, code and machine are unchanged since"


def checked_when(report: CheckReport) -> str | None:
    """Return when the checks of a report ran, such as "2026-01-31 09:05"; None: not recorded."""
    times = _times(report)
    return _span(times) if times else None


def _times(report: CheckReport) -> list[datetime]:
    """Return when each check ended, without those whose time is not recorded or unreadable."""
    times = []
    for finding in report.findings:
        with suppress(ValueError):
            time = datetime.fromisoformat(finding.checked_at or "")
            times.append(time if time.tzinfo else time.replace(tzinfo=UTC))
    return times


def _span(times: Sequence[datetime]) -> str:
    """Format the first and the last time, to the minute and in the local time zone."""
    first, last = (
        time.astimezone().strftime("%Y-%m-%d %H:%M") for time in (min(times), max(times))
    )
    return first if first == last else f"{first} to {last}"


def _num_ran(report: CheckReport) -> int:
    return sum(finding.outcome is not Outcome.COULD_NOT_RUN for finding in report.findings)


def sentence(finding: Finding) -> str:
    """Format an alarm as one sentence for a run's warnings."""
    text = f"check {finding.check} {WORDS[finding.outcome].lower()}: {finding.evidence}"
    return f"{text}. {finding.fix}" if finding.fix else text


def _seconds(seconds: float) -> str:
    """Format seconds, with one more digit below ten."""
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)

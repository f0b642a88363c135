"""Findings in words."""

from __future__ import annotations

from collections import Counter
from typing import Final

from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.train.wording import duration

WORDS: Final = {
    Outcome.PASSED: "passed",
    Outcome.FAILED: "FAILED",
    Outcome.WARNED: "warned",
    Outcome.NOT_APPLICABLE: "n/a",
    Outcome.COULD_NOT_RUN: "could not run",
}
_NAME_WIDTH: Final = 24
_INDENT: Final = " " * 16
MAX_EXAMPLES: Final = 6


def finding_lines(finding: Finding) -> str:
    """Write a finding: outcome, check and evidence, and below what to do and who shows it."""
    where = f"{finding.where}: " if finding.where else ""
    seen = f" ({finding.coverage})" if finding.coverage else ""
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


def total_line(report: CheckReport) -> str:
    """Count the outcomes, in one line."""
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
    if report.left_out:
        line += f"; no time was left for {', '.join(report.left_out)}"
    return line


def sentence(finding: Finding) -> str:
    """Write an alarm as one sentence for a run's warnings."""
    text = f"check {finding.check} {WORDS[finding.outcome].lower()}: {finding.evidence}"
    return f"{text}. {finding.fix}" if finding.fix else text


def _seconds(seconds: float) -> str:
    """Write seconds, with a digit more below ten."""
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)

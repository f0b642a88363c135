"""Findings in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    """List names of weights within a sentence; of many, the first."""
    names = [*names]
    return ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")


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


def folded(findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Put checks together that could not run for one reason; any other finding stands alone.

    Where a loss raises, every check that calls it says so. Reasons that differ only by numbers, as
    the sizes of the batches, are one.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for idx, finding in enumerate(findings):
        reason = _NUMBER.sub("0", finding.evidence)
        is_one = finding.outcome is not Outcome.COULD_NOT_RUN
        same = (idx,) if is_one else (reason, finding.where, finding.fix)
        groups.setdefault(same, []).append(finding)
    return [tuple(group) for group in groups.values()]


def group_name(group: Sequence[Finding]) -> str:
    """Name a group of `folded`: the check, or how many there are."""
    return group[0].check if len(group) == 1 else f"{len(group)} checks"


def group_lines(group: Sequence[Finding]) -> str:
    """Write a group of `folded` as `finding_lines` does, with the names of its checks below."""
    lines = finding_lines(replace(group[0], check=group_name(group)))
    if len(group) == 1:
        return lines
    names = ", ".join(finding.check for finding in group)
    width = 100 - len(_INDENT) - 2
    return "\n".join([lines, *(f"{_INDENT}  {line}" for line in wrap(names, width))])


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

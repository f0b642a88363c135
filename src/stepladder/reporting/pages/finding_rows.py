"""Findings as rows of a page, those to act on first."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.checks.wording import MAX_EXAMPLES, WORDS, folded, group_name
from stepladder.records.findings import Finding, Outcome, PicturePair
from stepladder.reporting.addresses import picture_address
from stepladder.reporting.charts.heatmap import short

QUIET = (Outcome.PASSED, Outcome.NOT_APPLICABLE)
_ORDER = (Outcome.FAILED, Outcome.WARNED, Outcome.COULD_NOT_RUN, *QUIET)


@dataclass(frozen=True, kw_only=True)
class PairView:
    """Two pictures on a page.

    Attributes:
        names: of both.
        addresses: both as data: URIs; empty: no picture.
    """

    names: tuple[str, str]
    addresses: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """A finding on a page, or several checks that could not run for the same reason.

    Attributes:
        pairs: pictures that show what was found.
        checks: names of the checks, if there are several.
    """

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
    pairs: tuple[PairView, ...] = ()
    checks: tuple[str, ...] = ()


def ordered(findings: Sequence[Finding]) -> list[tuple[Finding, ...]]:
    """Return the groups of `folded`: failed first, not applicable last."""
    return sorted(folded(findings), key=lambda group: _ORDER.index(group[0].outcome))


def finding_row(group: Sequence[Finding], *, reason: str = "", source: str = "") -> FindingRow:
    """Return a group of `folded` as a row, with the reason and source of its check."""
    finding = group[0]
    seen = f" (checked: {finding.coverage})" if finding.coverage else ""
    return FindingRow(
        outcome=WORDS[finding.outcome].lower(),
        style=finding.outcome.value,
        name=group_name(group),
        reason=reason,
        source=source,
        evidence=short(f"{finding.evidence}{seen}", 500),
        where=finding.where or "",
        fix=short(finding.fix, 400),
        examples=tuple(short(example, 80) for example in finding.examples[:MAX_EXAMPLES]),
        pairs=tuple(_pair(pair) for pair in finding.pictures[:MAX_EXAMPLES]),
        took="" if finding.took_s is None else f"{finding.took_s:.2f} s",
        checks=tuple(one.check for one in group) if len(group) > 1 else (),
    )


def _pair(pair: PicturePair) -> PairView:
    first, second = (_address(jpeg) for jpeg in pair.jpegs)
    return PairView(names=pair.names, addresses=(first, second))


def _address(jpeg: str) -> str:
    try:
        return picture_address(base64.b64decode(jpeg, validate=True))
    except ValueError:
        return ""

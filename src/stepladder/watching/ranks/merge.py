"""One report over all ranks: that of rank 0, with the findings of all ranks and those over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from stepladder.records.findings import Finding, Outcome
from stepladder.records.ranks import RankReport, first_dead
from stepladder.records.watch import WatchReport
from stepladder.watching.ranks.detectors import RANK_DETECTORS
from stepladder.watching.ranks.seen import RankRecord, Ranks
from stepladder.watching.report import ask, sorted_findings

_NO_REPORT: Final = "it left no report"
_RUNNING: Final = "it was still running, or was killed"
_WORST: Final = (Outcome.FAILED, Outcome.WARNED, Outcome.PASSED, Outcome.NOT_APPLICABLE)
_EXPLAINS: Final = (("schedule_stepped_per_rank", "schedule_misused"),)
_OTHER_RANKS: Final = "Other ranks:"


def merged(
    found: Mapping[int, tuple[WatchReport, RankRecord]],
    started: Mapping[int, RankReport],
    size: int,
    *,
    exit_code: int | None = None,
) -> WatchReport:
    """Return the report over all ranks.

    Args:
        found: reports and records by rank, at least one.
        started: what is known of those that have at least started.
        size: number of ranks of the script.
        exit_code: of the launcher, if it has ended.
    """
    ranks = tuple(_report_of(rank, found, started) for rank in range(size))
    dead = first_dead(ranks)
    first, _ = found[min(found)]
    own = first if dead is None or dead.rank not in found else found[dead.rank][0]
    code = own.exit_code if exit_code is None else exit_code
    if dead is not None and dead.exit_code is not None and dead.has_failed:
        code = dead.exit_code
    whole = Ranks(size=size, records=tuple(record for _, record in found.values()))
    over = tuple(ask(one.name, one.severity, one.look, whole) for one in RANK_DETECTORS)
    own_findings = merge_findings([(rank, report) for rank, (report, _) in found.items()], size)
    findings = [one for one in own_findings if not _is_repeated(one, over)]
    return replace(
        first,
        is_complete=all(one.is_complete for one in ranks),
        ending=own.ending,
        exit_code=code,
        crash=own.crash if dead is not None else None,
        crashed_at=own.crashed_at if dead is not None else None,
        findings=sorted_findings((*findings, *over)),
        not_seen=_not_seen(first, [rank for rank in range(size) if rank not in found]),
        ranks=ranks,
        dead_rank=None if dead is None else dead.rank,
    )


def _report_of(
    rank: int,
    found: Mapping[int, tuple[WatchReport, RankRecord]],
    started: Mapping[int, RankReport],
) -> RankReport:
    if rank not in found:
        return replace(started.get(rank, RankReport(rank=rank)), ending=_NO_REPORT)
    report = found[rank][1].report
    return report if report.is_complete else replace(report, ending=_RUNNING)


def _is_repeated(own: Finding, over: Sequence[Finding]) -> bool:
    """Return whether a finding over ranks explains one of a single rank."""
    names = [better for better, name in _EXPLAINS if name == own.check]
    return any(one.fault in names and one.where == own.where for one in over)


def merge_findings(reports: Sequence[tuple[int, WatchReport]], size: int) -> tuple[Finding, ...]:
    """Return one finding for each detector: the worst one, and on how many ranks it was found."""
    by_check: dict[str, list[tuple[int, Finding]]] = {}
    for rank, report in reports:
        for finding in report.findings:
            by_check.setdefault(finding.check, []).append((rank, finding))
    return tuple(_merge(each, size) for each in by_check.values())


def _merge(each: Sequence[tuple[int, Finding]], size: int) -> Finding:
    def badness(one: tuple[int, Finding]) -> int:
        outcome = one[1].outcome
        return _WORST.index(outcome) if outcome in _WORST else len(_WORST)

    _, worst = min(each, key=badness)  # of the lowest rank, if several are as bad
    if not worst.is_alarm:
        return worst
    on = [rank for rank, finding in each if finding.is_alarm]
    if len(on) == size:
        return worst
    which = f"rank {on[0]}" if len(on) == 1 else f"{len(on)} of {size} ranks"
    return replace(worst, evidence=f"on {which}: {worst.evidence}")


def _not_seen(first: WatchReport, missing: Sequence[int]) -> tuple[str, ...]:
    kept = tuple(text for text in first.not_seen if not text.startswith(_OTHER_RANKS))
    if not missing:
        return kept
    which = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
    reason = "killed, or on another machine that does not share this folder"
    return (*kept, f"Rank{'s' if len(missing) > 1 else ''} {which}: no report ({reason}).")

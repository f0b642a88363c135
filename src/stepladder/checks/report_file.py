"""Read, write and extend checks.json in a run folder, while its key is valid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.checks import order
from stepladder.checks.contract import Check, Tier
from stepladder.errors import DataError
from stepladder.records import read_json, write_json
from stepladder.records.findings import CheckReport, Outcome
from stepladder.records.from_json import from_json

CHECKS_FILE: Final = "checks.json"


def read_checks(run: Path) -> CheckReport | None:
    """Read the report of a run; None if it does not exist, or cannot be read."""
    try:
        return from_json(CheckReport, read_json(run / CHECKS_FILE))
    except (DataError, OSError):
        return None


def write_checks(run: Path, report: CheckReport) -> Path:
    """Write checks.json to a run's folder, which is created if needed, and return its path."""
    run.mkdir(parents=True, exist_ok=True)
    path = run / CHECKS_FILE
    write_json(path, report)
    return path


def find_kept(run: Path, *, key: str, tier: Tier) -> CheckReport | None:
    """Return the report in a folder if it has this key and all checks of a tier.

    It may have more.
    """
    report = find_some(run, key=key)
    return None if report is None or missing(report, tier) else report


def find_some(run: Path, *, key: str) -> CheckReport | None:
    """Return the report in a folder if it has this key, even if it is incomplete."""
    report = read_checks(run)
    is_known = report is not None and report.key == key and report.tier in tuple(Tier)
    return report if is_known else None


def missing(report: CheckReport, tier: Tier) -> tuple[Check, ...]:
    """Return the checks of a tier (FULL includes FAST) that are missing from a report.

    Checks that could not run are included: the cause may be fixed by now.
    """
    covered = {check.name for check in _of_tier(Tier(report.tier))} - set(report.left_out)
    could_run = (one for one in report.findings if one.outcome is not Outcome.COULD_NOT_RUN)
    found = {finding.check for finding in could_run} & covered
    return tuple(check for check in _of_tier(tier) if check.name not in found)


def together(kept: CheckReport, new: CheckReport) -> CheckReport:
    """Merge two reports with one key: new findings replace kept ones, and none is lost.

    The time is the total of both.
    """
    if kept == new:
        return kept
    found = {finding.check: finding for finding in (*kept.findings, *new.findings)}
    tier = Tier.FULL if Tier.FULL.value in (kept.tier, new.tier) else Tier.FAST
    names = [check.name for check in _of_tier(tier)]
    return replace(
        new,
        tier=tier.value,
        findings=tuple(found[name] for name in names if name in found),
        took_s=kept.took_s + new.took_s,
        left_out=tuple(name for name in names if name not in found),
    )


def add_checks(run: Path, report: CheckReport) -> CheckReport:
    """Merge a report into the one in a run's folder, if it has the same key; return the result."""
    kept = find_some(run, key=report.key)
    whole = report if kept is None else together(kept, report)
    write_checks(run, whole)
    return whole


def _of_tier(tier: Tier) -> Sequence[Check]:
    return [check for check in order.CHECKS if tier is Tier.FULL or check.tier is Tier.FAST]

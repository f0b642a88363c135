"""checks.json of a run folder: written whole, read back and added to where its key still holds."""

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
    """Read what was found for a run; None where nothing was, or it cannot be read."""
    try:
        return from_json(CheckReport, read_json(run / CHECKS_FILE))
    except (DataError, OSError):
        return None


def write_checks(run: Path, report: CheckReport) -> Path:
    """Write checks.json into a run's folder, which is made if need be, and give its path."""
    run.mkdir(parents=True, exist_ok=True)
    path = run / CHECKS_FILE
    write_json(path, report)
    return path


def find_kept(run: Path, *, key: str, tier: Tier) -> CheckReport | None:
    """Return the findings that lie in a folder if they are of this key, and of all checks of a tier.

    They may be of more.
    """
    report = find_some(run, key=key)
    return None if report is None or missing(report, tier) else report


def find_some(run: Path, *, key: str) -> CheckReport | None:
    """Return the findings that lie in a folder if they are of this key, of however many checks."""
    report = read_checks(run)
    is_known = report is not None and report.key == key and report.tier in tuple(Tier)
    return report if is_known else None


def missing(report: CheckReport, tier: Tier) -> tuple[Check, ...]:
    """Return the checks of a tier, those of FAST with FULL, that a report says nothing of.

    One that could not run is among them: what was in its way may be gone, as a file that is there
    now.
    """
    covered = {check.name for check in _of_tier(Tier(report.tier))} - set(report.left_out)
    could_run = (one for one in report.findings if one.outcome is not Outcome.COULD_NOT_RUN)
    found = {finding.check for finding in could_run} & covered
    return tuple(check for check in _of_tier(tier) if check.name not in found)


def together(kept: CheckReport, new: CheckReport) -> CheckReport:
    """Put findings of one key together: new ones go before kept ones, and none is lost.

    The time is that of both looks.
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
    """Write a report into a run's folder with what lies there of the same key, and give both."""
    kept = find_some(run, key=report.key)
    whole = report if kept is None else together(kept, report)
    write_checks(run, whole)
    return whole


def _of_tier(tier: Tier) -> Sequence[Check]:
    return [check for check in order.CHECKS if tier is Tier.FULL or check.tier is Tier.FAST]

"""checks.json of a run folder: written whole, read back where its key still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stepladder.checks.contract import Tier
from stepladder.errors import DataError
from stepladder.records import read_json, write_json
from stepladder.records.findings import CheckReport
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
    """Give the findings that lie in a folder if they are of this key and tier, or of more."""
    report = read_checks(run)
    if report is None or report.key != key or report.left_out:
        return None
    return report if report.tier in (tier.value, Tier.FULL.value) else None

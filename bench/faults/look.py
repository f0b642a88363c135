"""Run a program once with stepladder or once alone, and return the outcome."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.faults.corpus import TRACE_FILE, Program

ALARMS = ("failed", "warned")
KEPT = ("check", "outcome", "fault", "evidence", "where")
TAIL = 300


def look(program: Program, *, timeout_s: float, budget: str | None = None) -> dict[str, Any]:
    """Run stepladder on a program.

    Args:
        budget: time budget of `check`; None: its default.

    Returns:
        `alarms`: findings that failed or warned; `told`: faults that were reported without an
        alarm;
        `could_not_run`: checks that could not run, and why; `left_out`: checks that had no time;
        `error`: why there is no complete report, or None; `seconds`, `code`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result, errors = _run(program.command(folder / "out", budget=budget), folder, timeout_s)
        file = program.findings_file(folder / "out")
        if not file.exists():
            nothing: dict[str, Any] = {
                "alarms": [],
                "told": [],
                "could_not_run": [],
                "left_out": [],
            }
            return {**result, **nothing, "error": errors or "no report"}
        report = json.loads(file.read_text())
    findings = report["findings"]
    return {
        **result,
        "alarms": [
            {key: finding.get(key) for key in KEPT}
            for finding in findings
            if finding["outcome"] in ALARMS
        ],
        "told": [
            finding["fault"]
            for finding in findings
            if finding["fault"] is not None and finding["outcome"] not in ALARMS
        ],
        "could_not_run": [
            f"{finding['check']}: {finding['evidence']}"
            for finding in findings
            if finding["outcome"] == "could_not_run"
        ],
        "left_out": report.get("left_out", []),
        "error": report.get("watcher_error") or ("timed out" if result["code"] is None else None),
    }


def trace(program: Program, *, timeout_s: float) -> dict[str, Any]:
    """Run a program alone, and check whether its loss fell.

    Returns:
        `fell`: True if it ended without an error and the mean loss of the last tenth of steps is
        below that of the first tenth; `first`, `last`: these means, or None without losses.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result, _ = _run(program.trace_command(folder), folder, timeout_s)
        file = folder / TRACE_FILE
        losses = json.loads(file.read_text()) if file.exists() else []
    first, last = ends(losses)
    fell = result["code"] == 0 and first is not None and last is not None and last < first
    return {**result, "first": first, "last": last, "num_losses": len(losses), "fell": fell}


def ends(losses: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean loss of the first and last tenth of steps; None if empty or not finite."""
    part = len(losses) // 10
    if part == 0:
        return None, None
    first, last = sum(losses[:part]) / part, sum(losses[-part:]) / part
    return (first if math.isfinite(first) else None, last if math.isfinite(last) else None)


def _run(command: list[str], folder: Path, timeout_s: float) -> tuple[dict[str, Any], str]:
    """Run a command on one core in a folder; return exit code (None: timeout) and last output."""
    start_s = time.monotonic()
    code: int | None = None
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
        code, errors = done.returncode, done.stderr.strip()[-TAIL:]
    except subprocess.TimeoutExpired:
        errors = f"timed out after {timeout_s:.0f} s"
    return {"code": code, "seconds": round(time.monotonic() - start_s, 1)}, errors

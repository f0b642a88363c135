"""Compare the findings of `check` and `watch` on every program of the corpus."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.held_fast.checkout import Checkout

TIMEOUT_S = 600
_NO_REPORT = {"no report": "no report"}


def compare_findings(
    old: Checkout, new: Checkout, folder: Path, *, limit: int | None
) -> tuple[list[str], list[str]]:
    """Compare the name and outcome of each finding, program by program.

    Where they differ, both run twice more: if runs of the old checkout differ among themselves, the
    difference is noise and only noted.

    Args:
        limit: maximum number of programs, chosen evenly; None: all.

    Returns:
        (differences, notes).
    """
    given = {"root": str(new.root), "folder": str(folder / "programs")}
    programs = new.probe("programs", given, cwd=folder)
    if limit is not None and limit < len(programs):
        step = len(programs) / limit
        programs = [programs[int(idx * step)] for idx in range(limit)]
    found: list[str] = []
    noise: list[str] = []
    num_findings = 0
    for program in programs:
        before, after = _look(old, program, folder), _look(new, program, folder)
        num_findings += len(before)
        if before == after:
            continue
        looks = {
            checkout.name: [first, *(_look(checkout, program, folder) for _ in range(2))]
            for checkout, first in ((old, before), (new, after))
        }
        for check in sorted(before.keys() | after.keys()):
            seen = {name: {look.get(check) for look in each} for name, each in looks.items()}
            if seen["old"] == seen["new"] and len(seen["old"]) == 1:
                continue
            line = f"{program['name']}: {check}: {_listed(seen['old'])}, now {_listed(seen['new'])}"
            is_noise = bool(seen["old"] & seen["new"])
            (noise if is_noise else found).append(line)
    notes = [
        f"{len(programs)} programs, {num_findings:,} findings",
        *(f"noise: {n}" for n in noise),
    ]
    return found, notes


def _look(checkout: Checkout, program: dict[str, Any], folder: Path) -> dict[str, str]:
    """Run a checkout on a program; return the outcome and fault of each check."""
    out = folder / "look"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    if program["kind"] == "script":
        after = ["--", *program["args"]] if program["args"] else []
        words = ["watch", "--quiet", "--out", str(out / "report"), program["path"], *after]
        file = out / "report" / "watch.json"
    else:
        target = f"{program['path']}:{program['task']}"
        words = ["check", target, "--quiet", "--run.dir", str(out / "report"), *program["args"]]
        file = out / "report" / "checks.json"
    try:
        checkout.command(*words, cwd=out, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"timeout": "timeout"}
    if not file.exists():
        return _NO_REPORT
    report = json.loads(file.read_text())
    found = {}
    for idx, finding in enumerate(report["findings"]):
        same = sum(1 for other in report["findings"][:idx] if other["check"] == finding["check"])
        fault = f" ({finding['fault']})" if finding["fault"] else ""
        found[f"{finding['check']}{f' {same}' if same else ''}"] = finding["outcome"] + fault
    return found | {f"left out: {name}": "left out" for name in report.get("left_out", ())}


def _listed(outcomes: set[str | None]) -> str:
    return " or ".join(sorted(str(outcome) for outcome in outcomes))


os.environ.setdefault("OMP_NUM_THREADS", "1")

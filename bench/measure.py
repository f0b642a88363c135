"""Measure contenders fairly: several rounds in rotated order, with the machine recorded."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepladder.machine import environment as describe_machine
from stepladder.machine.environment import git_state

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"


def environment() -> dict[str, Any]:
    """Return machine, versions, the commit that is measured and the current load."""
    code = git_state(ROOT, only="*.py")  # results written by now are not code changes
    return {**describe_machine(), "git": code, "load_average": os.getloadavg()}


def cold_caches(folder: Path) -> dict[str, str]:
    """Return environment variables that point torch.compile to empty caches.

    Args:
        folder: an empty one, for this process only.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def rotated_trials(contenders: Mapping[str, Callable[[], float]], n: int) -> dict[str, list[float]]:
    """Run all contenders for n rounds, in rotated order.

    Args:
        contenders: by name, a function that runs once and returns its figure.
        n: number of rounds.

    Returns:
        The figures by name, paired by round.
    """
    names = list(contenders)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for round_idx in range(n):
        turn = round_idx % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(contenders[name]())
    return figures


def summary(figures: list[float]) -> dict[str, float | int]:
    """Return n, median, minimum and maximum."""
    return {
        "n": len(figures),
        "median": statistics.median(figures),
        "min": min(figures),
        "max": max(figures),
    }


def ratio(figures: list[float], baseline: list[float]) -> dict[str, float | int]:
    """Summarize the paired ratios figure / baseline, round by round."""
    return summary([a / b for a, b in zip(figures, baseline, strict=True)])


def write_results(name: str, result: Mapping[str, Any], table: str) -> None:
    """Write results/NAME.json and results/NAME.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, default=str) + "\n")
    (RESULTS / f"{name}.md").write_text(table)

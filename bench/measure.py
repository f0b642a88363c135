"""Measure contenders fairly: in rotated order, several times, with the machine written down."""

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
    """Return machine, versions, the code that is measured and the load at this moment."""
    code = git_state(ROOT, only="*.py")  # results written meanwhile are no code
    return {**describe_machine(), "git": code, "load_average": os.getloadavg()}


def cold_caches(folder: Path) -> dict[str, str]:
    """Return the variables by which a process finds nothing that torch.compile made before.

    Args:
        folder: an empty one, for this process alone.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def rotated_trials(contenders: Mapping[str, Callable[[], float]], n: int) -> dict[str, list[float]]:
    """Run every contender once a round for n rounds, each round beginning with another one.

    Args:
        contenders: by name, a function that runs once and gives its figure.
        n: rounds.

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
    """Return n, median, smallest and largest."""
    return {
        "n": len(figures),
        "median": statistics.median(figures),
        "min": min(figures),
        "max": max(figures),
    }


def ratio(figures: list[float], baseline: list[float]) -> dict[str, float | int]:
    """Summarise the paired ratios figure / baseline, round by round."""
    return summary([a / b for a, b in zip(figures, baseline, strict=True)])


def write_results(name: str, result: Mapping[str, Any], table: str) -> None:
    """Write results/NAME.json and results/NAME.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, default=str) + "\n")
    (RESULTS / f"{name}.md").write_text(table)

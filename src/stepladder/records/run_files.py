"""File names in a run folder, and the run that a path belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepladder.records.ledger_file import CLIMB_FILE, EARLIER_FILE, LEDGER_FILE

EVENTS: Final = "events.jsonl"
CONFIG_FILE: Final = "config.yaml"
RUN_MARKS: Final = (EVENTS, LEDGER_FILE)  # every run that started has one of them
POPULATION_MARKS: Final = ("population.state.json", "population.json")
JOB_MARKS: Final = (*RUN_MARKS, "checks.json")  # also those of a job that was only checked
RUN_FILES: Final = frozenset(
    {
        CONFIG_FILE,
        "env.json",
        EVENTS,
        "events.discarded.jsonl",
        LEDGER_FILE,
        EARLIER_FILE,
        CLIMB_FILE,
        "summary.json",
        "predictions.csv",
        "checks.json",
        "diagnosis.json",
        "scaling.json",
        "population.json",
        "population.jsonl",
        "population.state.json",
        "mlflow.json",
        "crash.txt",
        "lock",
    }
)
"""Files of a run folder (docs/run-folder.md), without pages, which are generated from them."""
_MAX_NAMED: Final = 4
_MAX_UP: Final = 3  # files of a checkpoint are two folders below the run


def has_any(folder: Path, marks: Sequence[str]) -> bool:
    """Return True if a folder has a file with one of these names."""
    return any((folder / name).is_file() for name in marks)


def run_of(file: Path, marks: Sequence[str] = RUN_MARKS) -> Path | None:
    """Return the run folder that contains a file, also in a subfolder, or None."""
    return next((up for up in file.parents[:_MAX_UP] if has_any(up, marks)), None)


def runs_in(folder: Path, marks: Sequence[str] = RUN_MARKS) -> list[Path]:
    """List the run folders directly in a folder, sorted by name."""
    try:
        return sorted(item for item in folder.iterdir() if item.is_dir() and has_any(item, marks))
    except OSError:
        return []


def did_you_mean(runs: Sequence[Path]) -> str:
    """Return a suggestion with the first few runs."""
    named = ", ".join(str(run) for run in runs[:_MAX_NAMED])
    more = " …" if len(runs) > _MAX_NAMED else ""
    return f"Did you mean {'one of ' if len(runs) > 1 else ''}{named}{more}?"

"""Names in the folder of a run, and which run is meant where another path was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepladder.records.ledger_file import CLIMB_FILE, EARLIER_FILE, LEDGER_FILE

EVENTS: Final = "events.jsonl"
CONFIG_FILE: Final = "config.yaml"
RUN_MARKS: Final = (EVENTS, LEDGER_FILE)  # one of them lies in whatever began to train or climb
JOB_MARKS: Final = (*RUN_MARKS, "checks.json")  # or in that of a job that was only checked
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
        "mlflow.json",
        "crash.txt",
        "lock",
    }
)
"""Files of a run folder (docs/run-folder.md) but for its pages, which are made again from them."""
_MAX_NAMED: Final = 4
_MAX_UP: Final = 3  # a file of a checkpoint lies two folders below its run


def has_any(folder: Path, marks: Sequence[str]) -> bool:
    """Return True if a folder holds a file of one of these names."""
    return any((folder / name).is_file() for name in marks)


def run_of(file: Path, marks: Sequence[str] = RUN_MARKS) -> Path | None:
    """Return the run whose folder holds a file, perhaps further down; None where there is none."""
    return next((up for up in file.parents[:_MAX_UP] if has_any(up, marks)), None)


def runs_in(folder: Path, marks: Sequence[str] = RUN_MARKS) -> list[Path]:
    """List the runs that lie directly in a folder, by name."""
    try:
        return sorted(item for item in folder.iterdir() if item.is_dir() and has_any(item, marks))
    except OSError:
        return []


def did_you_mean(runs: Sequence[Path]) -> str:
    """Ask for one of some runs; the first few are named."""
    named = ", ".join(str(run) for run in runs[:_MAX_NAMED])
    more = " …" if len(runs) > _MAX_NAMED else ""
    return f"Did you mean {'one of ' if len(runs) > 1 else ''}{named}{more}?"

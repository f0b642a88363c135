"""The programs that the checks are judged by: what each holds, and how it is run."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).parent
FOLDERS = {
    "development": HERE / "development",
    "held_out": HERE / "held_out",
    "held_out_2": HERE / "held_out_2",
    "sound": HERE.parent / "sound",
}
TRACER = HERE / "loss_trace.py"
WATCH_FILE, CHECK_FILE, TRACE_FILE = "watch.json", "checks.json", "losses.json"


class Half(StrEnum):
    """Whether a program has its fault."""

    BUGGY = "buggy"
    CORRECT = "correct"


class Kind(StrEnum):
    """A script is run under `watch`; a Task is looked at by `check`."""

    SCRIPT = "script"
    TASK = "task"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        name: its pair, or the command line of a sound one.
        half: of a sound program always CORRECT.
        fault: the fault of its pair, a name of `FAULTS`; None: it is of no pair.
        path: its file.
        task: the Task's class name, for kind TASK.
        args: what follows it on the command line.
    """

    name: str
    half: Half
    fault: str | None
    kind: Kind
    path: Path
    task: str | None
    args: tuple[str, ...]

    def command(self, folder: Path, *, budget: str | None = None) -> list[str]:
        """Give the command by which stepladder looks at it; its findings are left in the folder.

        Args:
            budget: time for `check`, such as "200s"; None: its own.
        """
        ours = [sys.executable, "-m", "stepladder"]
        if self.kind is Kind.SCRIPT:
            after = ["--", *self.args] if self.args else []
            return [*ours, "watch", "--quiet", "--out", str(folder), str(self.path), *after]
        target = f"{self.path}:{self.task}"
        time = [] if budget is None else ["--budget", budget]
        return [*ours, "check", target, "--quiet", *time, "--run.dir", str(folder), *self.args]

    def findings_file(self, folder: Path) -> Path:
        """Give the file that the command leaves."""
        return folder / (WATCH_FILE if self.kind is Kind.SCRIPT else CHECK_FILE)

    def trace_command(self, folder: Path) -> list[str]:
        """Give the command that runs it to its end, and leaves its losses in the folder."""
        tracer = [sys.executable, str(TRACER), str(folder / TRACE_FILE)]
        if self.kind is Kind.SCRIPT:
            return [*tracer, str(self.path), *self.args]
        target = f"{self.path}:{self.task}"
        train = ["-m", "stepladder", "train", "--task", target, "--quiet"]
        return [*tracer, *train, "--run.dir", str(folder / "run"), *self.args]


def programs(corpus: str, only: Sequence[str] = ()) -> list[Program]:
    """Read a corpus: both halves of each pair, or each command line of the sound programs.

    Args:
        corpus: a key of FOLDERS.
        only: names; empty: all.
    """
    folder = FOLDERS[corpus]
    if not folder.exists():  # held out: kept packed, so that nobody meets one by chance
        shutil.unpack_archive(f"{folder}.tar.xz", folder.parent, filter="data")
    entries = json.loads((folder / "index.json").read_text())
    chosen = [entry for entry in entries if not only or entry["name"] in only]
    if corpus == "sound":
        return [
            Program(
                name=entry["name"],
                half=Half.CORRECT,
                fault=None,
                kind=Kind.SCRIPT,
                path=folder / entry["program"],
                task=None,
                args=tuple(entry["args"]),
            )
            for entry in chosen
        ]
    return [
        Program(
            name=entry["name"],
            half=half,
            fault=entry["fault"],
            kind=Kind(entry["kind"]),
            path=folder / entry["name"] / f"{half}.py",
            task=entry.get("task"),
            args=(*entry["args"], *entry[f"{half}_args"]),
        )
        for entry in chosen
        for half in Half
    ]

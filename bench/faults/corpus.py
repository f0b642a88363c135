"""The program corpora that the checks are evaluated on: their programs, and how to run them.

In `development` each program is stored once, in its correct version, and `patches/PAIR.patch` is
the unified diff to the faulty half of the pair; a pair without a patch differs in its arguments. To
add a pair: write the program, copy it, break the copy, and save `diff -U2 PROGRAM COPY`. Held-out
pairs stay packed, so that nobody reads one by accident.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.unpack import unpack
from stepladder.records.faults import FAULTS, Eyes

HERE = Path(__file__).parent
DEVELOPMENT = HERE / "development"
SOUND = HERE.parent / "sound"
CORPORA = ("development", "held_out", "held_out_2", "sound")
MAX_CHANGED_LINES = 8
OF_RANKS = {
    "ranks_read_same_data",
    "validation_padded",
    "schedule_stepped_per_rank",
    "slow_rank",
    "communication_exposed",
    "unused_search",
}
NOT_SHOWN = {"no_room_for_checkpoints", "machine_limit", *OF_RANKS}
"""Faults of the disk and the machine, which no program has, and of several processes, which tests
start."""
TRACER = HERE / "loss_trace.py"
WATCH_FILE, CHECK_FILE, TRACE_FILE = "watch.json", "checks.json", "losses.json"


class Half(StrEnum):
    """Whether a program has its fault."""

    BUGGY = "buggy"
    CORRECT = "correct"


class Kind(StrEnum):
    """Scripts run under `watch`, Tasks under `check`."""

    SCRIPT = "script"
    TASK = "task"


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program.

    Attributes:
        name: the name of its pair, or of the command line of a sound program.
        half: always CORRECT for a sound program.
        fault: the fault of its pair, a name of `FAULTS`; None: not part of a pair.
        path: its file.
        task: the Task's class name, for kind TASK.
        args: its command-line arguments.
    """

    name: str
    half: Half
    fault: str | None
    kind: Kind
    path: Path
    task: str | None
    args: tuple[str, ...]

    def command(self, folder: Path, *, budget: str | None = None) -> list[str]:
        """Return the command that checks it with stepladder and writes its findings in the folder.

        Args:
            budget: time for `check`, such as "200s"; None: the default of `check`.
        """
        ours = [sys.executable, "-m", "stepladder"]
        if self.kind is Kind.SCRIPT:
            after = ["--", *self.args] if self.args else []
            return [*ours, "watch", "--quiet", "--out", str(folder), str(self.path), *after]
        target = f"{self.path}:{self.task}"
        time = [] if budget is None else ["--budget", budget]
        return [*ours, "check", target, "--quiet", *time, "--run.dir", str(folder), *self.args]

    def findings_file(self, folder: Path) -> Path:
        """Return the findings file that the command writes."""
        return folder / (WATCH_FILE if self.kind is Kind.SCRIPT else CHECK_FILE)

    def trace_command(self, folder: Path) -> list[str]:
        """Return the command that runs it to its end and writes its losses in the folder."""
        tracer = [sys.executable, str(TRACER), str(folder / TRACE_FILE)]
        if self.kind is Kind.SCRIPT:
            return [*tracer, str(self.path), *self.args]
        target = f"{self.path}:{self.task}"
        train = ["-m", "stepladder", "train", "--task", target, "--quiet"]
        return [*tracer, *train, "--run.dir", str(folder / "run"), *self.args]


def programs(corpus: str, folder: Path, only: Sequence[str] = ()) -> list[Program]:
    """Read a corpus: both halves of each pair, or each command line of the sound programs.

    Args:
        corpus: one of CORPORA.
        folder: where both halves of the pairs are written, as PAIR/buggy.py and PAIR/correct.py.
        only: names to read; empty: all.
    """
    if corpus == "sound":
        return [
            Program(
                name=entry["name"],
                half=Half.CORRECT,
                fault=None,
                kind=Kind.SCRIPT,
                path=SOUND / entry["program"],
                task=None,
                args=tuple(entry["args"]),
            )
            for entry in _sound_entries()
            if not only or entry["name"] in only
        ]
    if corpus == "development":
        entries = _write_pairs(folder)
    else:
        unpack(HERE / f"{corpus}.tar.xz", folder)
        folder /= corpus
        entries = json.loads((folder / "index.json").read_text())
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
        for entry in entries
        if not only or entry["name"] in only
        for half in Half
    ]


def patched(text: str, patch: str) -> str:
    """Apply a unified diff to a text; all of its context lines must match.

    Raises:
        ValueError: if a line that the diff keeps or removes does not match, or a hunk does not have
            the number of lines in its header.
    """
    lines = text.splitlines(keepends=True)
    found: list[str] = []
    position = 0
    _, *hunks = re.split(r"^(?=@@ )", patch, flags=re.MULTILINE)
    if not hunks:
        raise ValueError("the patch has no hunks")
    for hunk in hunks:
        head, *changes = hunk.splitlines(keepends=True)
        ranges = re.match(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", head)
        if ranges is None:
            raise ValueError(f"not a hunk header: {head!r}")
        start, num_old, num_new = (int(ranges[idx] or 1) for idx in (1, 2, 4))
        old = [line[1:] or line for line in changes if line[0] != "+"]  # a blank context line
        new = [line[1:] or line for line in changes if line[0] != "-"]
        if (len(old), len(new)) != (num_old, num_new):
            raise ValueError(
                f"{head.strip()}: {len(old)} old and {len(new)} new lines do not match the header"
            )
        if lines[start - 1 : start - 1 + num_old] != old or start - 1 < position:
            raise ValueError(f"{head.strip()}: the program's lines do not match")
        found += lines[position : start - 1] + new
        position = start - 1 + num_old
    return "".join(found + lines[position:])


def _write_pairs(folder: Path) -> list[dict[str, Any]]:
    """Write both halves of each development pair; return the entries of the index."""
    entries: list[dict[str, Any]] = json.loads((DEVELOPMENT / "index.json").read_text())
    for entry in entries:
        correct = (DEVELOPMENT / entry["program"]).read_text()
        file = DEVELOPMENT / "patches" / f"{entry['name']}.patch"
        try:
            buggy = correct
            if file.exists():
                patch = file.read_text()
                assert patch.startswith(f"--- {entry['program']}\n"), (
                    "the patch is for another program"
                )
                buggy = patched(correct, patch)
            _check_pair(entry, buggy, correct)
        except (ValueError, AssertionError) as error:
            raise SystemExit(f"{entry['name']}: {error}") from error
        pair = folder / entry["name"]
        pair.mkdir(parents=True)
        (pair / "buggy.py").write_text(buggy)
        (pair / "correct.py").write_text(correct)
    _check_development(entries)
    return entries


def _check_pair(entry: dict[str, Any], buggy: str, correct: str) -> None:
    """Assert that the halves differ only at the fault, and that no text names the fault."""
    eyes = {fault.name: fault.eyes for fault in FAULTS}[entry["fault"]]
    eye = Eyes.WATCH if entry["kind"] == Kind.SCRIPT else Eyes.CHECK
    assert eye in eyes, f"{entry['fault']} is not checked by {eye}"
    is_same = buggy == correct
    assert is_same == (entry["buggy_args"] != entry["correct_args"]), (
        "a pair needs either a patch or different arguments"
    )
    halves = [set(text.splitlines()) for text in (buggy, correct)]
    num_changed = max(len(halves[0] - halves[1]), len(halves[1] - halves[0]))
    assert num_changed <= MAX_CHANGED_LINES, f"{num_changed} lines differ"
    for text in (buggy, correct):
        assert entry["fault"] not in text, "programs must not mention the fault"
        classes = {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
        assert entry.get("task") is None or entry["task"] in classes, f"no {entry['task']}"


def _check_development(entries: Sequence[dict[str, Any]]) -> None:
    """Assert that every fault has a program, and that there are no unused files."""
    names = {entry["name"] for entry in entries}
    assert len(names) == len(entries), "duplicate pair"
    patches = {path.stem for path in (DEVELOPMENT / "patches").iterdir()}
    assert patches <= names, f"patches without a pair: {patches - names}"
    files = {f"{path.parent.name}/{path.name}" for path in DEVELOPMENT.glob("*/*.py")}
    assert files == {entry["program"] for entry in entries}, "programs without a pair"
    wanted = {fault.name for fault in FAULTS if set(fault.eyes) != {Eyes.DIAGNOSE}} - NOT_SHOWN
    assert {entry["fault"] for entry in entries} == wanted, "faults without a program"


def _sound_entries() -> list[dict[str, Any]]:
    """Return the index of the sound programs, after checking for duplicates."""
    entries: list[dict[str, Any]] = json.loads((SOUND / "index.json").read_text())
    assert len({entry["name"] for entry in entries}) == len(entries), "duplicate name"
    lines = {(entry["program"], *entry["args"]) for entry in entries}
    assert len(lines) == len(entries), "duplicate command line"
    assert {path.name for path in SOUND.glob("*.py")} == {entry["program"] for entry in entries}
    return entries

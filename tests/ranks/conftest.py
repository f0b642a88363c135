"""Runs of several ranks for the tests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ranks.together import ROOT, TASKS, Command, Start, ended, environment


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `stepladder train` on a task, and end all of its processes after the test."""
    started: list[Command] = []

    def run(
        task: str, *words: str, run: str = "run", env: Mapping[str, str] | None = None
    ) -> Command:
        common = ("--run.dir", str(tmp_path / run), "--train", "all", "--run.checks", "off")
        out = tmp_path / f"{len(started)}.txt"
        with out.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "stepladder", "train", f"{TASKS}:{task}", *common, *words],
                cwd=ROOT,
                env=environment(**(env or {})),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(Command(process, out))
        return started[-1]

    try:
        yield run
    finally:
        children = [child for command in started for child in command.children()]
        with ended([command.process for command in started]):
            pass
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()

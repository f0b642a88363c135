"""`--launch spark` trains in the tasks of a barrier stage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ranks.together import ROOT, TASKS, environment

TIMEOUT_S = 200
LEFT_S = 20  # in which all processes of a stage that failed have ended
MARK = "STEPLADDER_TEST"  # in the environment of all processes of a test


@pytest.fixture(autouse=True)
def none_left(tmp_path: Path) -> Iterator[None]:
    """End what a failed test has left."""
    yield
    for process in processes_of(tmp_path):
        with suppress(psutil.Error):
            process.kill()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes of a test that still run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                found.append(process)
    return found


def train(task: str, run: Path, *words: str, master: str) -> subprocess.CompletedProcess[str]:
    """Run `stepladder train --launch spark`."""
    common = ("--run.dir", str(run), "--train", "all", "--run.checks", "off", "--epochs", "2")
    command = [sys.executable, "-m", "stepladder", "train", f"{TASKS}:{task}", "--launch", "spark"]
    return subprocess.run(
        [*command, *common, *words],
        cwd=ROOT,
        env=environment(
            SPARK_MASTER=master, PYTHONPATH=str(ROOT / "src"), **{MARK: str(run.parent)}
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def test_tasks_of_a_barrier_stage_train_together(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = train("Plain", tmp_path / "run", "--devices", "2", master="local[2]")
    assert done.returncode == 0, done.stderr + done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["devices"]) == ("finished", 2)


def test_an_error_of_a_task_comes_with_its_message(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = train("Breaks", tmp_path / "run", "--devices", "2", master="local[2]")
    assert done.returncode == 1, done.stderr
    assert "rank 1 on" in done.stderr
    assert "ValueError: the third batch of rank 1" in done.stderr
    assert "Traceback" not in done.stderr
    said = done.stderr[done.stderr.index("rank 1 on") :]
    assert len(said.splitlines()) <= 15, done.stderr
    until = time.monotonic() + LEFT_S
    while left := processes_of(tmp_path):
        assert time.monotonic() < until, [process.cmdline() for process in left]
        time.sleep(0.2)


def test_what_all_tasks_refuse_ends_with_its_code(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    words = ("--devices", "2", "--batch-size", "1")
    done = train("Plain", tmp_path / "run", *words, master="local[2]")
    assert done.returncode == 2, done.stderr
    assert "a batch of 1 example cannot be divided among 2 devices" in done.stdout + done.stderr


def test_too_few_slots_are_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = train("Plain", tmp_path / "run", "--devices", "3", master="local[2]")
    assert done.returncode == 4, done.stderr
    assert "Spark can run 2 tasks at once, but a run on 3 devices needs 3" in done.stderr

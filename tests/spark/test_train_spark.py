"""`--launch spark` trains in the tasks of a barrier stage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ranks.together import ROOT, TASKS, checkpoints, environment, wait_for

TIMEOUT_S = 200
LEFT_S = 20  # in which all processes of a stage that failed have ended
LONG = ("--epochs", "400", "--stopping.no-early", "--run.checkpoint-every-s", "0.2")
CLUSTER = "local-cluster[2,1,1024]"
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


def started(task: str, run: Path, *words: str, master: str) -> subprocess.Popen[str]:
    """Start `stepladder train --launch spark`; what it prints goes into the file `printed`."""
    common = ("--run.dir", str(run), "--train", "all", "--run.checks", "off")
    command = [sys.executable, "-m", "stepladder", "train", f"{TASKS}:{task}", "--launch", "spark"]
    with (run.parent / "printed").open("w") as out:
        return subprocess.Popen(
            [*command, *common, *words],
            cwd=ROOT,
            env=environment(
                SPARK_MASTER=master,
                PYTHONPATH=str(ROOT / "src"),
                SPARK_LOCAL_IP="127.0.0.1",
                PYSPARK_PYTHON=sys.executable,
                **{MARK: str(run.parent)},
            ),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def ended(process: subprocess.Popen[str], run: Path) -> str:
    """Wait for the end of a run, and return what it printed."""
    process.wait(timeout=TIMEOUT_S)
    return (run.parent / "printed").read_text()


def train(task: str, run: Path, *words: str, master: str) -> subprocess.CompletedProcess[str]:
    """Run `stepladder train --launch spark` for two epochs."""
    process = started(task, run, "--epochs", "2", *words, master=master)
    printed = ended(process, run)
    return subprocess.CompletedProcess(process.args, process.returncode, printed, printed)


def summary(run: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def executors(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the executors of a driver that are processes of their own."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.Error):
            words = one.cmdline()
            if "java" in words[0] and "CoarseGrainedExecutorBackend" in " ".join(words):
                found.append(one)
    return found


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
    assert "SPARK_MASTER=local[3]" in done.stderr


def test_executors_of_a_cluster_train_together(tmp_path: Path) -> None:
    """Each of the two executors has one core, and they register after the session has started."""
    pytest.importorskip("pyspark")
    done = train("Plain", tmp_path / "run", "--devices", "2", master=CLUSTER)
    assert done.returncode == 0, done.stdout
    assert "2 processes on Spark, on CPUs, because spark.task.resource.gpu.amount" in done.stdout
    found = summary(tmp_path / "run")
    assert (found["status"], found["devices"], found["attempts"]) == ("finished", 2, 1)


def test_a_killed_executor_is_replaced_and_the_run_resumes(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    run = tmp_path / "run"
    words = (*LONG, "--schedule.max-steps", "400", "--devices", "2", "--overwrite")
    process = started("Plain", run, *words, master=CLUSTER)
    wait_for(lambda: process.poll() is not None or checkpoints(run))
    executors(process)[0].kill()
    printed = ended(process, run)
    assert process.returncode == 0, printed
    assert "starting all again from the last checkpoint" in printed
    assert "resumed from" in printed
    found = summary(run)
    assert (found["status"], found["steps"], found["attempts"]) == ("finished", 400, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_run_and_the_same_command_resumes_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    pytest.importorskip("pyspark")
    run = tmp_path / "run"
    words = (*LONG, "--schedule.max-steps", "300", "--devices", "2")
    process = started("Plain", run, *words, master="local[2]")
    wait_for(lambda: process.poll() is not None or checkpoints(run))
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C in a terminal
    else:
        process.send_signal(number)
    printed = ended(process, run)
    assert process.returncode == 128 + number, printed
    assert f"{number.name} ended the run; its state is saved" in printed
    assert "Traceback" not in printed
    assert list((run / "logs").glob("spark.*")) == []
    process = started("Plain", run, *words, master="local[2]")
    printed = ended(process, run)
    assert process.returncode == 0, printed
    assert "resumed from" in printed
    assert (summary(run)["steps"], summary(run)["attempts"]) == (300, 2)

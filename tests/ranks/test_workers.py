"""Workers in processes of their own: they train, and may end, hang or fail."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ranks.test_faults import has_no_process
from tests.ranks.together import ROOT, TASKS, Command, Start, environment, wait_for

COMMON = ("--batch-size", "8", "--epochs", "3", "--stopping.no-early", "--optimizer.name", "sgd")
COMMON += ("--batch.lr", "0.1", "--device.threads", "1", "--asynchronous.workers", "2")
SERVER = ("--asynchronous.method", "parameter_server")
LONG = ("--epochs", "60", "--run.checkpoint-every-s", "0")


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind, so far."""
    file = run / "events.jsonl"
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if one["event"] == kind]


def losses(run: Path) -> list[float]:
    return [one["val_loss"] for one in events(run, "validation")]


def test_with_a_bound_of_0_two_workers_train_as_one_process(start: Start, tmp_path: Path) -> None:
    alone = start("Plain", *COMMON, run="alone")
    assert alone.process.wait(100) == 0, alone.ended()
    both = start("Plain", *COMMON, *SERVER, "--asynchronous.max-age", "0", run="both")
    assert both.process.wait(100) == 0, both.ended()
    assert losses(tmp_path / "both") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert sum(sum(one["examples_by_worker"]) for one in events(tmp_path / "both", "workers")) == (
        3 * 37
    )
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    "method", ["parameter_server", "backup_workers", "hogwild", "local_sgd", "diloco"]
)
def test_each_method_learns_and_ends_its_processes(
    start: Start, tmp_path: Path, method: str
) -> None:
    words = ("--epochs", "12", "--asynchronous.method", method, "--asynchronous.age-rule", "none")
    command = start("WithNorm", *COMMON, *words, "--optimizer.momentum", "0")
    printed = command.ended()
    assert command.process.returncode == 0, printed
    found = losses(tmp_path / "run")
    assert len(found) == 12
    assert found[-1] < found[0]
    updates = events(tmp_path / "run", "workers")
    assert sum(one["updates"] for one in updates) > 0
    assert has_no_process(tmp_path)


def workers_of(command: Command, num: int) -> dict[int, psutil.Process]:
    """Wait until some workers have contributed, and return their processes."""
    run = Path(command.out).parent / "run"

    def have_begun() -> bool:
        found = events(run, "workers")
        return any(sum(count > 0 for count in one["examples_by_worker"]) == num for one in found)

    wait_for(lambda: have_begun() or command.process.poll() is not None)
    assert command.process.poll() is None, command.out.read_text()
    return command.ranks()


@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("method", ["parameter_server", "hogwild", "local_sgd"])
def test_a_worker_that_ends_or_hangs_is_replaced(
    start: Start, tmp_path: Path, method: str, number: int
) -> None:
    words = ("--asynchronous.method", method, "--run.stall-s", "3")
    command = start("Waiting", *COMMON, *LONG, *words)
    workers_of(command, 2)[1].send_signal(number)
    printed = command.ended()
    assert command.process.returncode == 0, printed
    found = events(tmp_path / "run", "workers")
    assert sum(one["lost_workers"] for one in found) == 1
    assert found[-1]["examples_by_worker"][1] > 0  # the new one works
    assert has_no_process(tmp_path)


@pytest.mark.distributed
def test_workers_end_with_their_server_and_the_same_command_resumes(
    start: Start, tmp_path: Path
) -> None:
    command = start("Waiting", *COMMON, *LONG, *SERVER)
    workers_of(command, 2)
    wait_for(lambda: list((tmp_path / "run" / "checkpoints").glob("step-*")))
    command.process.kill()
    wait_for(lambda: has_no_process(tmp_path))
    before = events(tmp_path / "run", "checkpoint")[-1]["step"]
    again = start("Waiting", *COMMON, *LONG, *SERVER)
    printed = again.ended()
    assert again.process.returncode == 0, printed
    assert "resumed from" in printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 60 * 5 > before
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("task", "code", "said"),
    [
        ("Breaks", 4, "worker 1 raised ValueError: the third batch of rank 1"),
        ("NotFinite", 5, "became NaN or infinite"),
    ],
)
def test_what_a_worker_raises_ends_the_run(
    start: Start, tmp_path: Path, task: str, code: int, said: str
) -> None:
    command = start(task, *COMMON, *LONG, *SERVER)
    printed = command.ended()
    assert command.process.returncode == code, printed
    assert said in printed
    assert "Traceback" not in printed
    assert has_no_process(tmp_path)


@pytest.mark.distributed
def test_a_worker_that_ends_again_and_again_is_named(start: Start, tmp_path: Path) -> None:
    command = start("Ends", *COMMON, *LONG, *SERVER, "--run.restarts", "2")
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert "worker 1 ended with code 7, 3 times in a row" in printed
    assert "the last words" in printed
    assert has_no_process(tmp_path)


def test_without_zeromq_the_install_command_is_printed(tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("raise ImportError('no zmq')\n")
    words = ["train", f"{TASKS}:Plain", "--run.dir", str(tmp_path / "run"), "--run.checks", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "stepladder", *words, "--train", "all", *COMMON, *SERVER],
        cwd=ROOT,
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT / 'src'}:{ROOT}"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'stepladder[asynchronous]'" in done.stderr

"""`--devices N` starts the processes, restarts them if one dies, and shows the first failure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import stepladder
from stepladder.cli.main import main
from stepladder.errors import UsageError
from stepladder.parallel import join
from tests.ranks.together import (
    ROOT,
    TASKS,
    Command,
    Start,
    checkpoints,
    ended,
    environment,
    wait_for,
)

LONG = ("--epochs", "400", "--stopping.no-early", "--run.checkpoint-every-s", "0.2")


def logs(run: Path) -> str:
    """Return the logs of all ranks."""
    return "".join(path.read_text() for path in (run / "logs").glob("rank-*.log"))


def summary(run: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    found: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return found


def attempts(run: Path) -> set[int]:
    """Return the numbers of the attempts in a run's events."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return {json.loads(line)["attempt"] for line in lines}


@pytest.mark.distributed
def test_a_dead_rank_is_replaced_and_the_run_ends_as_without(start: Start, tmp_path: Path) -> None:
    """Kill rank 1 once it has saved: all start again, and the weights are those of a quiet run."""
    words = ("--devices", "2", *LONG, "--schedule.max-steps", "150", "--deterministic")
    command = start("Plain", *words)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    command.ranks()[1].kill()
    printed = command.ended()
    assert command.process.returncode == 0, printed
    assert "(rank 1) was killed by SIGKILL; starting all processes again" in printed
    quiet = start("Plain", *words, run="quiet")
    quiet.ended()
    results = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "quiet")
    ]
    for key in ("steps", "val_loss", "test_loss", "best_step"):
        assert results[0][key] == results[1][key], key
    assert results[0]["attempts"] == 2
    assert attempts(tmp_path / "run") == {1, 2}


@pytest.mark.distributed
def test_an_error_of_one_rank_is_shown_once_and_does_not_start_again(
    start: Start, tmp_path: Path
) -> None:
    command = start("Breaks", "--devices", "2", "--epochs", "3")
    printed = command.ended()
    assert command.process.returncode == 1
    assert printed.count("failed first") == 1
    last = printed[printed.index("rank 1 on") :].splitlines()
    assert len(last) <= 15
    assert "ValueError: the third batch of rank 1" in last[1]
    assert "tasks.py:" in last[2]
    assert str(tmp_path / "run" / "logs" / "rank-1.log") in last[-1]
    assert "starting all processes again" not in printed


@pytest.mark.distributed
def test_a_signal_saves_the_run_and_the_same_command_resumes_it(
    start: Start, tmp_path: Path
) -> None:
    """Also with another number of devices: nothing of an epoch is repeated or skipped."""
    words = (*LONG, "--schedule.max-steps", "400", "--deterministic")
    command = start("Plain", "--devices", "2", *words)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    command.process.send_signal(signal.SIGTERM)
    printed = command.ended()
    assert command.process.returncode == 128 + signal.SIGTERM, printed
    assert "its state is saved" in printed
    command = start("Plain", "--devices", "3", *words)
    printed = command.ended()
    assert command.process.returncode == 0, printed
    assert "resumed from" in printed
    one = start("Plain", *words, run="one")
    one.ended()
    results = [
        json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "one")
    ]
    assert [row["steps"] for row in results] == [400, 400]
    assert results[0]["val_loss"] == pytest.approx(results[1]["val_loss"], rel=1e-3)


@pytest.mark.distributed
def test_no_rank_outlives_its_launcher(start: Start, tmp_path: Path) -> None:
    command = start("Plain", "--devices", "2", *LONG)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    ranks = command.ranks()
    assert set(ranks) == {0, 1}
    command.process.kill()
    gone, alive = psutil.wait_procs(list(ranks.values()), timeout=30)
    assert not alive, gone
    assert join._PARENT_POLL_S + join._LAST_S < 5  # how long a rank at most takes to end


def test_a_rank_that_does_not_end_after_its_launcher_is_ended() -> None:
    """Also if its main thread waits in a collective, and no handler of a signal can run."""
    inner = (
        "import threading, time, signal\n"
        "from stepladder.parallel.join import _end_with_launcher\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('saving', flush=True))\n"
        "_end_with_launcher()\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    outer = (
        "import subprocess, sys, os\n"
        f"rank = subprocess.Popen([sys.executable, '-c', {inner!r}], stdout=subprocess.PIPE)\n"
        "rank.stdout.readline()\n"
        "print(rank.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", outer],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    rank = int(done.stdout.split()[0])
    wait_for(lambda: not psutil.pid_exists(rank))


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_answer_is_named(start: Start, tmp_path: Path, rank: int) -> None:
    command = start("Plain", "--devices", "2", *LONG, "--run.stall-s", "2", "--run.restarts", "0")
    wait_for(lambda: checkpoints(tmp_path / "run"))
    command.ranks()[rank].send_signal(signal.SIGSTOP)
    said = f"rank {rank} has not answered for"
    wait_for(lambda: said in command.out.read_text() + logs(tmp_path / "run"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devices", "3", "--batch-size", "2"), "cannot be divided among"),
        (("--devices", "0"), "--devices: 0 is not 1 or more"),
    ],
)
def test_too_many_devices_are_refused_before_they_start(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", f"{TASKS}:Plain", *words, "--epochs", "1"]) == 2
    printed = capsys.readouterr().err
    assert printed.count(message) == 1, printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", ["climb", "advise"])
def test_what_measures_a_job_does_not_use_spark(name: str) -> None:
    with pytest.raises(UsageError, match="devices of this machine, not those of Spark"):
        getattr(stepladder, name)(task=f"{TASKS}:Plain", devices=2, launch="spark")


def test_advice_measures_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for key, value in place.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(UsageError, match="measures one machine, and cannot join"):
        stepladder.advise(task=f"{TASKS}:Plain")


def test_a_task_of_a_function_cannot_be_made_by_other_processes() -> None:
    code = (
        "import stepladder\nfrom tests.ranks.tasks import Plain\ndef made():\n    class "
        "Local(Plain): pass\n    return Local()\nstepladder.train(task=made(), devices=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the other processes of the run cannot create the Task" in done.stderr


def torchrun(*words: str, folder: Path) -> Command:
    """Start `torchrun -m stepladder train` with two ranks."""
    out = folder / "torchrun.txt"
    script = "from torch.distributed.run import main; main()"
    agent = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    common = ("--run.dir", str(folder / "run"), "--train", "all", "--run.checks", "off")
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *agent, "-m", "stepladder", "train", *words, *common],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Command(process, out)


@pytest.mark.distributed
def test_torchrun_shows_the_message_of_the_rank_that_failed(tmp_path: Path) -> None:
    command = torchrun(f"{TASKS}:Breaks", "--epochs", "3", folder=tmp_path)
    with ended([command.process]):
        printed = command.ended()
    assert command.process.returncode != 0
    first = printed.index("rank 1 on")
    assert "ValueError: the third batch of rank 1" in printed[first : first + 300]
    assert first < printed.index("ChildFailedError")


@pytest.mark.distributed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_saves_the_run(tmp_path: Path, number: signal.Signals) -> None:
    words = (f"{TASKS}:Plain", *LONG, "--schedule.max-steps", "300")
    command = torchrun(*words, folder=tmp_path)
    with ended([command.process]):
        wait_for(lambda: checkpoints(tmp_path / "run"))
        command.process.send_signal(number)
        printed = command.ended()
    assert command.process.returncode != 0
    assert f"{number.name} ended the run; its state is saved" in printed
    command = torchrun(*words, folder=tmp_path)
    with ended([command.process]):
        printed = command.ended()
    assert command.process.returncode == 0, printed
    assert "resumed from" in printed
    assert (summary(tmp_path / "run")["steps"], summary(tmp_path / "run")["attempts"]) == (300, 2)


@pytest.mark.distributed
def test_how_busy_each_device_is_stands_beside_each_log_line(start: Start, tmp_path: Path) -> None:
    command = start("Plain", "--devices", "2", "--epochs", "4", "--stopping.no-early")
    assert command.ended()
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    at = {kind: [e["step"] for e in events if e["event"] == kind] for kind in ("train", "devices")}
    assert at["devices"] == at["train"][1:]
    used = [event for event in events if event["event"] == "devices"]
    assert all(len(event["busy_frac"]) == len(event["hosts"]) == 2 for event in used)
    assert all(0 <= share <= 1 for event in used for share in event["busy_frac"])
    assert "Busy share by device" in (tmp_path / "run" / "report.html").read_text()

"""`--launch ray` trains on the workers of a Ray cluster, as `--devices` does with processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file

from stepladder.errors import ResourceError, UsageError
from stepladder.machine.limits import num_cores
from stepladder.parallel.launch.ray import run_on_ray
from tests.ranks.together import ROOT, TASKS, environment

TIMEOUT_S = 200
MARK = "STEPLADDER_TEST"  # in the environment of all processes of a test, also of Ray's
LONG = ("--epochs", "400", "--stopping.no-early", "--run.checkpoint-every-s", "0.2")
KILLED = (*LONG, "--schedule.max-steps", "300", "--deterministic")

needs_two = pytest.mark.skipif(num_cores() < 2, reason="Ray starts one process on each core")


@dataclass(frozen=True)
class Command:
    """A running `stepladder train --launch ray`, and what it prints."""

    process: subprocess.Popen[bytes]
    folder: Path

    def printed(self) -> str:
        """Wait for its end, and return what it printed."""
        self.process.wait(timeout=TIMEOUT_S)
        return (self.folder / "out.txt").read_text()


Start = Callable[..., Command]


def of_test(folder: Path) -> list[psutil.Process]:
    """Return the running processes of a test: the command, Ray, its workers and the ranks."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_running = process.status() != psutil.STATUS_ZOMBIE
            if is_running and process.environ().get(MARK) == str(folder):
                found.append(process)
    return found


def ranks(folder: Path) -> dict[int, psutil.Process]:
    """Return the ranks of a test's run."""
    found = {}
    for process in of_test(folder):
        with suppress(psutil.Error):
            if "-m" in process.cmdline() and (rank := process.environ().get("RANK")):
                found[int(rank)] = process
    return found


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its value."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def none_left(folder: Path) -> bool:
    """Wait until no process of a test runs, and return True."""
    return bool(wait_for(lambda: not of_test(folder)))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `stepladder train` with a Ray of its own, and end all processes after the test."""
    pytest.importorskip("ray.train")

    def run(task: str, *words: str, run: str = "run", launch: str = "ray", **env: str) -> Command:
        common = ("--run.dir", str(tmp_path / run), "--train", "all", "--run.checks", "off")
        command = [sys.executable, "-m", "stepladder", "train", f"{TASKS}:{task}", *common]
        own = {MARK: str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "RAY_ADDRESS": "local"}
        with (tmp_path / "out.txt").open("w") as out:
            process = subprocess.Popen(
                [*command, "--launch", launch, *words],
                cwd=ROOT,
                env=environment(**own | env),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Command(process, tmp_path)

    try:
        yield run
    finally:
        for process in of_test(tmp_path):
            with suppress(psutil.Error):
                process.kill()


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run."""
    return list((run / "checkpoints").glob("step-*"))


def weights(run: Path) -> dict[str, Any]:
    """Return the best weights of a run."""
    [file] = (run / "checkpoints").glob("best-*/model.safetensors")
    return dict(load_file(file))


def require_same(run: Path, other: Path) -> None:
    """Check that two runs of two ranks have the same weights and results."""
    one, two = weights(run), weights(other)
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        assert (tensor == two[name]).all(), name
    results = [json.loads((folder / "summary.json").read_text()) for folder in (run, other)]
    for key in ("status", "devices", "steps", "val_loss", "test_loss", "best_step"):
        assert results[0][key] == results[1][key], key


@needs_two
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_workers_of_ray_train_as_processes_do(start: Start, tmp_path: Path) -> None:
    words = ("--devices", "2", "--epochs", "2", "--deterministic")
    command = start("Plain", *words)
    printed = command.printed()
    assert command.process.returncode == 0, printed
    assert none_left(tmp_path)
    assert "ray::" not in printed
    assert "pid=" not in printed
    assert printed.count("validation after epoch 2") == 1
    assert not list((tmp_path / "run" / "logs").glob("ray*"))
    processes = start("Plain", *words, run="processes", launch="processes")
    assert processes.printed()
    require_same(tmp_path / "run", tmp_path / "processes")


@needs_two
@pytest.mark.parametrize("what", ["process", "worker of Ray"])
def test_a_killed_rank_is_replaced_and_the_run_ends_as_without(
    start: Start, tmp_path: Path, what: str
) -> None:
    words = ("--devices", "2", *KILLED)
    command = start("Plain", *words)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    victim = ranks(tmp_path)[1]
    said = "a process (rank 1) was killed by SIGKILL"
    if what == "worker of Ray":
        victim, said = victim.parent(), "the Ray worker of rank 1 ended"
    victim.kill()
    printed = command.printed()
    assert command.process.returncode == 0, printed
    assert f"{said}; starting all again" in printed
    assert "resumed from" in printed
    assert "raylet" not in printed
    assert none_left(tmp_path)
    processes = start("Plain", *words, run="processes", launch="processes")
    assert processes.printed()
    require_same(tmp_path / "run", tmp_path / "processes")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["attempts"] == 2


@needs_two
def test_a_process_that_dies_too_often_ends_the_run(start: Start, tmp_path: Path) -> None:
    command = start("Plain", "--devices", "2", *LONG, "--run.restarts", "0")
    wait_for(lambda: checkpoints(tmp_path / "run"))
    ranks(tmp_path)[1].kill()
    printed = command.printed()
    assert command.process.returncode == ResourceError.exit_code, printed
    assert printed.count("a process (rank 1) was killed by SIGKILL") == 1
    assert "starting all again" not in printed
    assert "Traceback" not in printed
    assert none_left(tmp_path)


@needs_two
def test_an_error_of_one_rank_is_shown_once_and_does_not_start_again(
    start: Start, tmp_path: Path
) -> None:
    command = start("Breaks", "--devices", "2", "--epochs", "3")
    printed = command.printed()
    assert command.process.returncode == 1, printed
    assert printed.count("failed first") == 1
    last = printed[printed.index("rank 1 on") :].splitlines()
    assert len(last) <= 15
    assert "ValueError: the third batch of rank 1" in last[1]
    assert str(tmp_path / "run" / "logs" / "rank-1.log") in last[-1]
    assert "starting all again" not in printed
    assert none_left(tmp_path)


@needs_two
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_the_same_command_resumes_it(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    words = ("--devices", "2", *KILLED)
    command = start("Plain", *words)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    if number == signal.SIGINT:
        os.killpg(command.process.pid, number)  # as a terminal does
    else:
        command.process.send_signal(number)
    printed = command.printed()
    assert command.process.returncode == 128 + number, printed
    assert printed.count("its state is saved") == 1
    assert none_left(tmp_path)
    command = start("Plain", *words)
    printed = command.printed()
    assert command.process.returncode == 0, printed
    assert "resumed from" in printed


@needs_two
def test_nothing_outlives_a_killed_launcher(start: Start, tmp_path: Path) -> None:
    command = start("Plain", "--devices", "2", *LONG)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    command.process.kill()
    command.process.wait()
    assert none_left(tmp_path)


def test_too_few_cores_are_refused_before_ray_starts(start: Start, tmp_path: Path) -> None:
    cores = num_cores()
    command = start("Plain", "--devices", str(cores + 1))
    printed = command.printed()
    assert command.process.returncode == ResourceError.exit_code, printed
    words = (
        f"Ray has {cores} CPU{'' if cores == 1 else 's'}, but a run on {cores + 1} devices needs"
    )
    assert words in printed
    assert f"Type --devices {cores}, or set RAY_ADDRESS" in printed


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of three CPUs and no GPU to which this process is connected."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(
        address="local", num_cpus=3, num_gpus=0, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 * 1024**2,
    )  # fmt: skip
    yield ray
    ray.shutdown()
    assert none_left_but_this(tmp_path)


def none_left_but_this(folder: Path) -> bool:
    """Wait until no other process of a test runs, and return True."""
    me = os.getpid()
    return bool(wait_for(lambda: all(one.pid == me for one in of_test(folder))))


def test_a_cluster_with_too_few_or_busy_resources_is_refused(cluster: Any, tmp_path: Path) -> None:
    def refused(num: int, *, uses_gpus: bool | None = None) -> str:
        with pytest.raises(ResourceError) as caught:
            run_on_ray(num, ["train"], folder=tmp_path, uses_gpus=uses_gpus, restarts=0)
        return str(caught.value)

    assert "Ray has 3 CPUs, but a run on 4 devices needs 4" in refused(4)
    assert "Type --devices 3, or add a machine to the cluster" in refused(4)
    assert "Ray has 0 GPUs, but a run on 2 devices needs 2" in refused(2, uses_gpus=True)

    class Busy:
        """Holds two CPUs."""

        def ready(self) -> None:
            """Return when it runs."""

    actor = cluster.remote(num_cpus=2)(Busy).remote()
    cluster.get(actor.ready.remote())
    wait_for(lambda: cluster.available_resources().get("CPU") == 1)
    said = refused(2)
    assert "Ray has 3 CPUs, 1 of them free, but a run on 2 devices needs 2" in said
    assert "Type --devices 1, or wait until other jobs have ended" in said


def test_an_address_without_a_cluster_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "ray://localhost:10001")
    with pytest.raises(UsageError, match="Ray Client cannot start"):
        run_on_ray(2, ["train"], folder=tmp_path, uses_gpus=False, restarts=0)


def test_a_missing_ray_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        run_on_ray(2, ["train"], folder=tmp_path, uses_gpus=False, restarts=0)
    assert str(caught.value) == "Ray Train is not installed\n  pip install 'stepladder[ray]'"

"""Faults of one rank: all processes end, the first failure is named, and training continues."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from tests.ranks.together import (
    ROOT,
    TASKS,
    Command,
    Start,
    checkpoints,
    ended,
    environment,
    free_port,
    wait_for,
)

SITE = Path(__file__).with_name("fault_site")
POINTS = (
    "start",
    "handshake",
    "first_step",
    "backward",
    "collective",
    "validation",
    "gather",
    "before_rename",
    "after_rename",
    "epoch_end",
    "finish",
    "after_finish",
)
MAIN_ONLY = ("before_rename", "after_rename")  # points that only rank 0 reaches
QUICK = (("before_rename", 0),)
SHORT = (
    *("--deterministic", "--stopping.no-early", "--epochs", "6", "--batch-size", "8"),
    *("--run.checkpoint-every-s", "0"),
)
MAX_LINES = 15
LATE_S = 20
HOST = socket.gethostname()


def fault(point: str, victim: int, folder: Path, number: int = signal.SIGKILL) -> dict[str, str]:
    """Return the variables that let a rank get a signal at a point."""
    at = 0 if point in MAIN_ONLY else victim
    spec = {"point": point, "at": at, "victim": victim, "signal": int(number)}
    paths = [str(SITE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        "FAULT": json.dumps({**spec, "folder": str(folder)}),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def weights(run: Path) -> dict[str, np.ndarray]:
    """Return the weights of the last checkpoint."""
    files = sorted(max(checkpoints(run)).glob("model*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


def steps_and_losses(run: Path) -> list[tuple[int, float]]:
    """Return the steps and the losses of the log lines of a run."""
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [(row["step"], row["train_loss"]) for row in rows if row["event"] == "train"]


def has_no_process(folder: Path) -> bool:
    """Return True if no process has a folder in its command or environment."""
    for process in psutil.process_iter():
        try:
            said = f"{process.cmdline()} {process.environ()}"
        except psutil.Error:
            continue
        if str(folder) in said and process.pid != os.getpid() and "pytest" not in said[:200]:
            return False
    return True


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("quiet") / "run"
    train_quietly(folder, 2)
    return folder


def train_quietly(folder: Path, num: int) -> None:
    """Train without a fault."""
    common = ("--run.dir", str(folder), "--train", "all", "--run.checks", "off")
    words = ["train", f"{TASKS}:Plain", "--devices", str(num), *common, *SHORT]
    done = subprocess.run(
        [sys.executable, "-m", "stepladder", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def assert_equal_end(run: Path, quiet: Path) -> None:
    """Check that a run has ended as an undisturbed one: weights to the bit, and every log line."""
    found, expected = weights(run), weights(quiet)
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert steps_and_losses(run) == steps_and_losses(quiet)
    lines = (run / "predictions.csv").read_text(), (quiet / "predictions.csv").read_text()
    assert lines[0] == lines[1]


def kill_at(start: Start, point: str, rank: int, folder: Path, num: int = 2) -> str:
    """Train with a kill at a point, and return what was printed."""
    command = start("Plain", "--devices", str(num), *SHORT, env=fault(point, rank, folder))
    printed = command.ended()
    assert (folder / "happened").exists(), printed
    assert command.process.returncode == 0, printed
    assert f"(rank {rank}) was killed by SIGKILL; starting all processes again" in printed
    assert has_no_process(folder)
    return printed


@pytest.mark.parametrize(("point", "rank"), QUICK)
def test_a_rank_killed_at_a_point_changes_nothing(
    start: Start, tmp_path: Path, quiet: Path, point: str, rank: int
) -> None:
    kill_at(start, point, rank, tmp_path)
    assert_equal_end(tmp_path / "run", quiet)


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("point", POINTS)
def test_a_rank_killed_at_any_point_changes_nothing(
    start: Start, tmp_path: Path, quiet: Path, point: str, rank: int
) -> None:
    if (point, rank) in QUICK:
        pytest.skip("is in `make test`")
    kill_at(start, point, rank, tmp_path)
    assert_equal_end(tmp_path / "run", quiet)


@pytest.mark.distributed
@pytest.mark.parametrize("point", ["collective", "gather"])
def test_one_of_four_ranks_killed_changes_nothing(start: Start, tmp_path: Path, point: str) -> None:
    kill_at(start, point, 2, tmp_path, num=4)
    train_quietly(tmp_path / "quiet", 4)
    assert_equal_end(tmp_path / "run", tmp_path / "quiet")


def assert_named(printed: str, rank: int, how: str) -> None:
    """Check that the end of what was printed names a rank, its host, and what happened."""
    place = f"rank {rank} on {HOST}"
    assert place in printed, printed
    last = printed[printed.index(place) :].splitlines()
    assert len(last) <= MAX_LINES, printed
    assert how in "\n".join(last)
    assert f"rank-{rank}.log" in "\n".join(last)
    assert "Traceback" not in printed


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("point", "rank"),
    [("collective", 0), ("start", 1), ("start", 0), ("gather", 1), ("before_rename", 1)],
)
def test_without_restarts_the_killed_rank_is_named_with_its_last_lines(
    start: Start, tmp_path: Path, point: str, rank: int
) -> None:
    words = ("--devices", "2", *SHORT, "--run.restarts", "0")
    command = start("Plain", *words, env=fault(point, rank, tmp_path))
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert_named(printed, rank, "was killed by SIGKILL")
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_ended_and_training_goes_on(
    start: Start, tmp_path: Path, quiet: Path, rank: int
) -> None:
    words = ("--devices", "2", *SHORT, "--run.stall-s", "3")
    command = start("Plain", *words, env=fault("collective", rank, tmp_path, signal.SIGSTOP))
    printed = command.ended()
    assert command.process.returncode == 0, printed
    assert f"rank {rank} has not answered for" in printed
    assert_equal_end(tmp_path / "run", quiet)
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
def test_without_restarts_the_stopped_rank_ends_the_run_and_is_named(
    start: Start, tmp_path: Path, rank: int
) -> None:
    """Not the other one, which has found it."""
    words = ("--devices", "2", *SHORT, "--run.stall-s", "3", "--run.restarts", "0")
    command = start("Plain", *words, env=fault("collective", rank, tmp_path, signal.SIGSTOP))
    wait_for(lambda: (tmp_path / "happened").exists())
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert_stalled_is_named(printed, rank)
    assert has_no_process(tmp_path)


@pytest.mark.distributed
def test_a_rank_that_ends_or_stops_within_an_own_all_reduce_is_named(
    start: Start, tmp_path: Path
) -> None:
    """Over point-to-point messages, whose errors name no rank."""
    words = ("--devices", "2", *SHORT, "--run.restarts", "0", "--all-reduce", "ring")
    command = start("Plain", *words, env=fault("message", 1, tmp_path))
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert_named(printed, 1, "was killed by SIGKILL")
    (tmp_path / "happened").unlink()
    env = fault("message", 1, tmp_path, signal.SIGSTOP)
    command = start("Plain", *words, "--run.stall-s", "3", run="stopped", env=env)
    wait_for(lambda: (tmp_path / "happened").exists())
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert_stalled_is_named(printed, 1)
    assert has_no_process(tmp_path)


def assert_stalled_is_named(printed: str, rank: int) -> None:
    """Check that what ends the run names a rank that does not answer, its host and its log."""
    said = f"the run ended because rank {rank} has not answered for"
    assert said in printed, printed
    last = printed[printed.index(said) :]
    assert HOST in last
    assert f"rank-{rank}.log" in last
    assert f"rank {1 - rank}" not in last
    assert "dmesg" not in last
    assert len(last.splitlines()) <= MAX_LINES


@pytest.mark.distributed
def test_a_rank_without_memory_is_named(start: Start, tmp_path: Path) -> None:
    command = start("OutOfMemory", "--devices", "2", *SHORT)
    printed = command.ended()
    assert command.process.returncode == 1, printed
    assert_named(printed, 1, "can't allocate memory")
    assert "in loss: torch.empty(" in printed
    assert "starting all processes again" not in printed


@pytest.mark.distributed
def test_a_loss_that_is_not_finite_ends_all_ranks_and_names_the_one(
    start: Start, tmp_path: Path
) -> None:
    command = start("NotFinite", "--devices", "2", *SHORT)
    printed = command.ended()
    assert command.process.returncode == 5, printed
    said = "became NaN or infinite at step 1 of the training, first on rank 1 on"
    assert printed.count(said) == 1, printed
    assert "failed first" not in printed
    assert "starting all processes again" not in printed
    rows = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    (event,) = [row for row in map(json.loads, rows) if row["event"] == "diverged"]
    assert event["ranks"] == [1]
    assert len(event["sample_ids"]) == 4  # of a batch of 8


@pytest.mark.distributed
def test_a_full_disk_of_the_run_is_named(start: Start, tmp_path: Path, small_disk: Path) -> None:
    """Fill it once the run has saved, and check that the last checkpoint opens."""
    words = ("--devices", "2", *SHORT, "--epochs", "2000", "--run.dir", str(small_disk / "run"))
    command = start("Plain", *words)
    wait_for(lambda: len(checkpoints(small_disk / "run")) > 1)
    fill(small_disk / "full")
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert "No space left on device" in printed
    assert printed.count("could not be saved") <= 1
    assert len(printed[printed.index("No space left") :].splitlines()) <= MAX_LINES
    assert has_no_process(tmp_path)
    (small_disk / "full").unlink()
    assert weights(small_disk / "run")


@pytest.mark.distributed
def test_a_full_disk_of_one_rank_alone_is_named(start: Start, tmp_path: Path) -> None:
    command = start("OwnFullDisk", "--devices", "2", *SHORT, env={"SCRATCH": str(tmp_path)})
    printed = command.ended()
    assert command.process.returncode == 1, printed
    assert_named(printed, 1, "File too large")
    assert "starting all processes again" not in printed
    assert has_no_process(tmp_path)


@pytest.mark.distributed
def test_a_rank_that_can_write_neither_log_nor_message_is_named(
    start: Start, tmp_path: Path
) -> None:
    words = ("--devices", "2", *SHORT, "--run.restarts", "0")
    command = start("OwnFullDisk", *words, env={"SCRATCH": str(tmp_path), "LIMIT_BYTES": "0"})
    printed = command.ended()
    assert command.process.returncode == 4, printed
    assert_named(printed, 1, "ended with code 1")
    assert has_no_process(tmp_path)


def fill(file: Path) -> None:
    """Write into a file until the disk is full."""
    with file.open("wb", buffering=0) as out:
        while True:
            try:
                out.write(b"\0" * 4096)
            except OSError:
                return


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "stepladder-test", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.distributed
def test_more_ranks_than_examples_are_refused(start: Start, tmp_path: Path) -> None:
    command = start("TwoExamples", "--devices", "3", *SHORT)
    printed = command.ended()
    assert command.process.returncode == 2, printed
    assert printed.count("the training data of 2 examples cannot be divided among 3 devices") == 1
    assert "Type --devices 2" in printed
    assert len(printed.splitlines()) <= MAX_LINES
    assert has_no_process(tmp_path)


class Nodes:
    """Ranks that are started one by one, as Slurm does."""

    def __init__(self, folder: Path, size: int, *, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.size = size
        self.address = address
        self.port = free_port()
        self.commands: dict[int, Command] = {}

    def start(self, rank: int, *words: str) -> None:
        """Start a rank."""
        out = self.folder / f"node-{rank}.txt"
        common = ("--run.dir", str(self.folder / "run"), "--train", "all", "--run.checks", "off")
        place = {"RANK": str(rank), "WORLD_SIZE": str(self.size)}
        place |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(self.size)}
        place |= {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)}
        with out.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "stepladder", "train", f"{TASKS}:Plain", *common, *words],
                cwd=ROOT,
                env=environment(**place),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.commands[rank] = Command(process, out)

    def ended(self) -> tuple[dict[int, int], str]:
        """Wait for all of them, and return their exit codes and what all printed."""
        printed = "".join(command.ended() for command in self.commands.values())
        for log in sorted((self.folder / "run" / "logs").glob("rank-[1-9].log")):
            printed += log.read_text()
        codes = {rank: int(one.process.returncode) for rank, one in self.commands.items()}
        return codes, printed

    @property
    def processes(self) -> Sequence[subprocess.Popen[Any]]:
        """The processes of all ranks."""
        return [command.process for command in self.commands.values()]


MEET = ("--epochs", "1", "--run.meet-s", "6")


@pytest.mark.distributed
def test_other_options_on_one_node_are_refused_with_both_sides(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    nodes.start(0, *MEET)
    nodes.start(1, *MEET, "--batch.lr", "0.25")
    with ended(nodes.processes):
        codes, printed = nodes.ended()
    assert codes == {0: 2, 1: 2}, printed
    assert f"batch.lr: 0.001 on rank 0, 0.25 on rank 1 ({HOST})" in printed
    assert len(nodes.commands[0].out.read_text().splitlines()) <= MAX_LINES
    assert "Traceback" not in printed


@pytest.mark.distributed
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_never_comes_is_named(tmp_path: Path, rank: int) -> None:
    nodes = Nodes(tmp_path, 3)
    nodes.start(rank, *MEET)
    if rank == 0:
        nodes.start(2, *MEET)
    with ended(nodes.processes):
        codes, printed = nodes.ended()
    assert set(codes.values()) == {4}, printed
    missing = "rank 1" if rank == 0 else "rank 0"
    assert f"{missing} did not come within 6 s" in nodes.commands[rank].out.read_text() + printed
    assert "Traceback" not in printed


def torchrun_node(folder: Path, port: int, name: str, *words: str) -> Command:
    """Start torchrun for one of two nodes, with one rank each."""
    out = folder / f"{name}.txt"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "x")
    agent = ("--nnodes", "2", "--nproc-per-node", "1", *meeting, "--local-addr", "127.0.0.1")
    common = ("--run.dir", str(folder / "run"), "--train", "all", "--run.checks", "off")
    script = "from torch.distributed.run import main; main()"
    job = ("-m", "stepladder", "train", f"{TASKS}:Plain", *common, *words)
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", script, *agent, *job],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Command(process, out)


@pytest.mark.distributed
def test_a_torchrun_node_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    nodes = [torchrun_node(tmp_path, port, "first", *SHORT)]
    time.sleep(LATE_S)
    nodes.append(torchrun_node(tmp_path, port, "second", *SHORT))
    with ended([node.process for node in nodes]):
        printed = [node.ended() for node in nodes]
    assert [node.process.returncode for node in nodes] == [0, 0], printed
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["devices"], summary["attempts"]) == ("finished", 2, 1)


@pytest.mark.distributed
def test_a_rank_killed_under_torchrun_is_named(tmp_path: Path) -> None:
    """The other rank names it, with its last lines, as torchrun prints only a number."""
    folder = tmp_path / "run"
    words = (*SHORT, "--epochs", "2000")
    port = free_port()
    nodes = [torchrun_node(tmp_path, port, name, *words) for name in ("first", "second")]
    with ended([node.process for node in nodes]):
        wait_for(lambda: checkpoints(folder))
        ranks = [node.ranks() for node in nodes]
        main, other = (0, 1) if 0 in ranks[0] else (1, 0)
        ranks[other][1].kill()
        printed = nodes[main].ended()
    assert f"rank 1 on {HOST}, ended without a message" in printed
    assert "rank-1.log" in printed


@pytest.mark.distributed
def test_a_busy_port_is_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", nodes.port))
        other.listen()
        for rank in range(2):
            nodes.start(rank, *MEET)
        with ended(nodes.processes):
            codes, printed = nodes.ended()
    assert codes == {0: 4, 1: 4}, printed
    assert f"another program uses the port {nodes.port}" in printed
    assert "Traceback" not in printed
    assert len(printed.splitlines()) <= 2 * MAX_LINES


@pytest.mark.distributed
def test_a_wrong_address_is_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 2, address="no-such-host.invalid")
    for rank in range(2):
        nodes.start(rank, *MEET)
    with ended(nodes.processes):
        codes, printed = nodes.ended()
    assert codes == {0: 4, 1: 4}, printed
    assert "no-such-host.invalid" in printed
    assert "Traceback" not in printed
    assert len(printed.splitlines()) <= 2 * MAX_LINES

"""Start ranks for a test, and end them whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
TASKS = Path(__file__).with_name("tasks.py")
TIMEOUT_S = 100


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that runs the code under test, on one thread."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    names += ("GROUP_RANK",)
    inherited = {key: value for key, value in os.environ.items() if key not in names}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **more}


@contextmanager
def ended(processes: Sequence[subprocess.Popen[Any]]) -> Iterator[None]:
    """Kill processes, each the first of a session, and all that they started."""
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass(frozen=True)
class Command:
    """A running `stepladder train` and the file that it prints into."""

    process: subprocess.Popen[bytes]
    out: Path

    def ended(self) -> str:
        """Wait for its end, and return what it printed."""
        self.process.wait(timeout=TIMEOUT_S)
        return self.out.read_text()

    def children(self) -> list[psutil.Process]:
        """Return all processes that it has started."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def ranks(self) -> dict[int, psutil.Process]:
        """Return its running ranks."""
        found = {}
        for child in self.children():
            try:
                if (rank := child.environ().get("RANK")) is not None:
                    found[int(rank)] = child
            except psutil.Error:
                continue
        return found


Start = Callable[..., Command]


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its value."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError("nothing happened")


def checkpoints(run: Path) -> list[Path]:
    """Return the checkpoints of a run."""
    return list((run / "checkpoints").glob("step-*"))


def run_ranks(num: int, calls: Sequence[dict[str, Any]], folder: Path) -> None:
    """Run calls of `stepladder.train` in several ranks, and check that all of them succeed."""
    codes, logs = codes_of(calls, folder, ranks_of_hosts=(num,))
    assert codes == [0] * num, "\n".join(logs)


def codes_of(
    calls: Sequence[dict[str, Any]],
    folder: Path,
    *,
    ranks_of_hosts: Sequence[int],
    folders: Sequence[Path] | None = None,
) -> tuple[list[int], list[str]]:
    """Run calls of `stepladder.train` in the ranks of several hosts.

    Args:
        ranks_of_hosts: number of ranks of each host.
        folders: working folder of each host; None: the root of the project.

    Returns:
        The exit code of each rank, and the end of what it printed.
    """
    num = sum(ranks_of_hosts)
    file = folder / f"calls-{num}.json"
    file.write_text(json.dumps(list(calls)))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    logs = [folder / f"out-{num}-{rank}.txt" for rank in range(num)]
    places = [(host, rank) for host, ranks in enumerate(ranks_of_hosts) for rank in range(ranks)]
    processes = []
    for rank, (host, local_rank) in enumerate(places):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(num),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(ranks_of_hosts[host]),
            "GROUP_RANK": str(host),
        }
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        with logs[rank].open("w") as out:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.ranks.run_all", str(file)],
                    cwd=ROOT if folders is None else folders[host],
                    env=environment(**place, **address, PYTHONPATH=path),
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    with ended(processes):
        codes = [process.wait(timeout=TIMEOUT_S) for process in processes]
    return codes, [log.read_text()[-3000:] for log in logs]

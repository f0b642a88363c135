"""`HorovodRunner`: run a function in several processes on this machine."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stepladder.errors import MissingExtraError, ResourceError, UsageError

_POLL_S: Final = 0.05
_LAST_S: Final = 2.0  # for other processes to write what they failed with
_MAX_LINES: Final = 10


class HorovodRunner:
    """Runs a function in several processes, each of which calls `hvd.init()`.

    Args:
        np: number of processes: -4 is four on this machine.
        driver_log_verbosity: has no effect; all processes print to the terminal.

    Raises:
        UsageError: if np is 0 or above.
    """

    def __init__(self, np: int, driver_log_verbosity: str = "all") -> None:  # noqa: ARG002
        if np >= 0:
            raise UsageError(
                f"HorovodRunner(np={np}) needs processes on a cluster, which are not available yet",
                where="np",
                fix=f"Use np={-np or -1} to run on this machine, or start the script with torchrun "
                "or srun.",
            )
        self.num_processes = -np

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function with keyword arguments in all processes; return the result of rank 0.

        Raises:
            MissingExtraError: if cloudpickle is not installed.
            ResourceError: if a process fails; with its last lines.
        """
        try:
            import cloudpickle
        except ImportError:
            raise MissingExtraError("HorovodRunner", "horovod") from None
        with tempfile.TemporaryDirectory(prefix="stepladder-horovod-") as name:
            folder = Path(name)
            (folder / "call").write_bytes(cloudpickle.dumps((main, kwargs)))
            _run_all(self.num_processes, folder)
            with (folder / "result").open("rb") as file:
                return pickle.load(file)


def _run_all(num: int, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(max(1, (os.cpu_count() or 1) // num))
    common = {
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "WORLD_SIZE": str(num),
        "LOCAL_WORLD_SIZE": str(num),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    words = [sys.executable, "-m", "stepladder.compat.horovod.worker", str(folder)]
    processes = [
        subprocess.Popen(words, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num)
    ]
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                time.sleep(_LAST_S)
                break
            time.sleep(_POLL_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = {rank: process.returncode for rank, process in enumerate(processes)}
    failed = {rank: code for rank, code in failed.items() if code}
    if failed:
        raise _error(failed, folder)


def _error(failed: dict[int, int], folder: Path) -> ResourceError:
    """Return the error of the rank that failed first."""
    written = sorted(folder.glob("error-*"), key=lambda path: path.stat().st_mtime_ns)
    if not written:
        rank, code = next(iter(failed.items()))
        return ResourceError(
            f"rank {rank} ended with code {code}",
            where="HorovodRunner",
            fix="Run the function alone to see why: fn() instead of HorovodRunner(np=…).run(fn)",
        )
    rank = int(written[0].name.removeprefix("error-"))
    lines = written[0].read_text(encoding="utf-8").rstrip().splitlines()
    return ResourceError(
        f"rank {rank} failed: {lines[-1]}",
        where="HorovodRunner",
        why="\n  ".join(lines[-_MAX_LINES:-1]),
        fix="Correct the function that was passed to HorovodRunner(…).run.",
    )

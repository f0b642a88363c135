"""`HorovodRunner`: run a function in several processes, on this machine, Spark or Ray."""

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

from stepladder.compat.horovod.rank_process import LAST_S, Outcome, failure
from stepladder.compat.horovod.ray_runner import has_ray, run_in_ray
from stepladder.compat.horovod.spark_runner import has_spark, run_in_spark
from stepladder.errors import MissingExtraError, ResourceError, UsageError

_POLL_S: Final = 0.05


class HorovodRunner:
    """Runs a function in several processes, each of which calls `hvd.init()`.

    Args:
        np: number of processes: -4 is four on this machine, 4 is four on the active Spark session,
            or else on the Ray that this program is connected to.
        driver_log_verbosity: has no effect; processes on this machine print to the terminal, others
            to the logs of the cluster.

    Raises:
        UsageError: if np is 0.
    """

    def __init__(self, np: int, driver_log_verbosity: str = "all") -> None:  # noqa: ARG002
        if np == 0:
            raise UsageError(
                "HorovodRunner(np=0) has no processes",
                where="np",
                fix="Use np=-1 to run on this machine, or np=1 on the active Spark session.",
            )
        self.num_processes = np

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call a function with keyword arguments in all processes; return the result of rank 0.

        Raises:
            MissingExtraError: if cloudpickle is not installed.
            ResourceError: if the cluster has too few cores, or a process fails; with its last
                lines.
            UsageError: if np is above 0, and there is no Spark session and no Ray.
        """
        try:
            import cloudpickle
        except ImportError:
            raise MissingExtraError("HorovodRunner", "horovod") from None
        num, call = self.num_processes, cloudpickle.dumps((main, kwargs))
        if num > 0 and has_spark():
            return run_in_spark(num, call)
        if num > 0 and has_ray():
            return run_in_ray(num, call)
        if num > 0:
            raise UsageError(
                f"HorovodRunner(np={num}) runs on a Spark session or on Ray, and there is neither",
                where="np",
                fix=f"Use np=-{num} to run on this machine, or start Spark before "
                "(SparkSession.builder.getOrCreate()) or connect to Ray (ray.init()).",
            )
        with tempfile.TemporaryDirectory(prefix="stepladder-horovod-") as name:
            folder = Path(name)
            (folder / "call").write_bytes(call)
            _run_all(-num, folder)
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
                time.sleep(LAST_S)
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
        return failure(Outcome(rank=rank, code=code))
    rank = int(written[0].name.removeprefix("error-"))
    error = written[0].read_text(encoding="utf-8")
    return failure(Outcome(rank=rank, code=failed.get(rank, 1), error=error))

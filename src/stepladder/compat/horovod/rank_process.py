"""One rank of a `HorovodRunner` on a cluster: a process, and what became of it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepladder.errors import ResourceError
from stepladder.parallel.join import host_name
from stepladder.parallel.place import (
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RANK,
    WORLD_SIZE,
)

PARENT: Final = "STEPLADDER_HOROVOD_PARENT"
LAST_S: Final = 2.0  # for other processes to write what they failed with
_POLL_S: Final = 0.05
_MAX_LINES: Final = 10
_OF_OTHERS: Final = "HorovodInternalError"  # the connection to a rank that has failed is closed


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Where a task of a cluster runs.

    Attributes:
        port: free, for rank 0 to listen at.
        gpus: those that the cluster assigned to the task.
    """

    host: str
    address: str
    port: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a rank.

    Attributes:
        result: of rank 0, pickled.
        error: its traceback; empty: it has none.
        code: of the process; not 0: it failed.
    """

    rank: int
    code: int
    result: bytes = b""
    error: str = ""


def own_spot(address: str, gpus: Sequence[str]) -> Spot:
    """Return where this task runs, with a free port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    return Spot(host=host_name(), address=address, port=port, gpus=tuple(gpus))


def run_rank(
    rank: int,
    spots: Sequence[Spot],
    call: bytes,
    paths: Sequence[str],
    has_failed: Callable[[], bool],
) -> Outcome:
    """Run the process of a rank, and wait for it.

    Args:
        rank: of the process.
        spots: of all ranks.
        call: the pickled function and its arguments.
        paths: of the driver, to import from.
        has_failed: another rank has failed; this one then has a moment to end.
    """
    until: float | None = None
    with tempfile.TemporaryDirectory(prefix="stepladder-horovod-") as name:
        folder = Path(name)
        (folder / "call").write_bytes(call)
        words = [sys.executable, "-m", "stepladder.compat.horovod.worker", name]
        process = subprocess.Popen(words, env=_environment(rank, spots, paths))
        try:
            while process.poll() is None:
                if until is None and has_failed():
                    until = time.monotonic() + LAST_S
                if until is not None and time.monotonic() > until:
                    break
                time.sleep(_POLL_S)
        finally:
            process.kill()
            code = process.wait()
        error, result = folder / f"error-{rank}", folder / "result"
        return Outcome(
            rank=rank,
            code=code,
            result=result.read_bytes() if rank == 0 and result.exists() else b"",
            error=error.read_text(encoding="utf-8") if error.exists() else "",
        )


def _environment(rank: int, spots: Sequence[Spot], paths: Sequence[str]) -> dict[str, str]:
    mine = [idx for idx, spot in enumerate(spots) if spot.host == spots[rank].host]
    gpus = [gpu for idx in mine for gpu in spots[idx].gpus]  # a script chooses by its local rank
    known = [path for path in (*paths, *sys.path) if path]
    return {
        **os.environ,
        **({"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(gpus))} if gpus else {}),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(known)),
        RANK: str(rank),
        WORLD_SIZE: str(len(spots)),
        LOCAL_RANK: str(mine.index(rank)),
        LOCAL_WORLD_SIZE: str(len(mine)),
        MASTER_ADDR: spots[0].address,
        MASTER_PORT: str(spots[0].port),
        PARENT: str(os.getpid()),
    }


def result_of(outcomes: Sequence[Outcome]) -> Any:
    """Return the result of rank 0; the outcomes are in the order in which the processes ended.

    Raises:
        ResourceError: if a process failed; with its last lines.
    """
    failed = [outcome for outcome in outcomes if outcome.code]
    if failed:
        raise failure(min(failed, key=lambda outcome: (not outcome.error, _is_late(outcome))))
    return pickle.loads(next(outcome.result for outcome in outcomes if outcome.rank == 0))


def _is_late(outcome: Outcome) -> bool:
    """Return True if a rank failed because another one had."""
    return _OF_OTHERS in outcome.error.rstrip().rpartition("\n")[2]


def failure(outcome: Outcome) -> ResourceError:
    """Return the error for a rank that failed."""
    if not outcome.error:
        return ResourceError(
            f"rank {outcome.rank} ended with code {outcome.code}",
            where="HorovodRunner",
            fix="Run the function alone to see why: fn() instead of HorovodRunner(np=…).run(fn)",
        )
    lines = outcome.error.rstrip().splitlines()
    return ResourceError(
        f"rank {outcome.rank} failed: {lines[-1]}",
        where="HorovodRunner",
        why="\n  ".join(lines[-_MAX_LINES:-1]),
        fix="Correct the function that was passed to HorovodRunner(…).run.",
    )

"""Start a run's processes in the places of a launcher that has started a climb, one for each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from stepladder.errors import InterruptedRun, ResourceError
from stepladder.parallel.failures import LAUNCHED, clear_failures, first_failure, log_file
from stepladder.parallel.fleet import Fleet, Spot
from stepladder.parallel.place import (
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    OF_LAUNCHERS,
    RANK,
    WORLD_SIZE,
)

_POLL_S: Final = 0.1
_END_S: Final = 30.0  # for the others, once one has ended
_RECORD_S: Final = 3.0


def run_on_ranks(fleet: Fleet, words: Sequence[str], *, folder: Path) -> None:
    """Run a command of stepladder in all places of a launcher, and wait for it.

    Args:
        words: arguments of `stepladder`.
        folder: of the run, which all hosts see.

    Raises:
        ResourceError: if a process died.
        InterruptedRun: after a signal.
        SystemExit: with the code of the error that rank 0 has printed.
    """
    clear_failures(folder)
    with socket.create_server((fleet.host, 0)) as probe:
        port = probe.getsockname()[1]
    arguments = ["-m", "stepladder", *words]
    environs = [_environ(fleet, port, rank, spot) for rank, spot in enumerate(fleet.spots)]
    inherited = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    main = subprocess.Popen(
        [sys.executable, *arguments],
        env={**inherited, **environs[0]},
        start_new_session=True,  # signals come through this process
    )
    keys = [fleet.start(rank, arguments, environs[rank]) for rank in range(1, fleet.size)]
    with _forwarding(main) as received:
        codes = _codes(fleet, main, keys)
    if received:
        number = received[0]
        raise InterruptedRun(
            f"{signal.Signals(number).name} ended the run; its state is saved",
            signal_number=number,
            fix="To resume, type the same command.",
        )
    if any(codes):
        raise _ended(codes, folder)


def _environ(fleet: Fleet, port: int, rank: int, spot: Spot) -> dict[str, str]:
    """Return the place of a process as torchrun would set it."""
    return {
        RANK: str(rank),
        WORLD_SIZE: str(fleet.size),
        LOCAL_RANK: str(spot.local_rank),
        LOCAL_WORLD_SIZE: str(spot.local_size),
        MASTER_ADDR: fleet.host,
        MASTER_PORT: str(port),
        LAUNCHED: "1",
    }


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass signals on to rank 0, with which all ranks agree to stop, and list them."""
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        received.append(number)
        with suppress(ProcessLookupError):
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, forward) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        process.kill()
        process.wait()


def _codes(fleet: Fleet, main: subprocess.Popen[bytes], keys: Sequence[str]) -> list[int]:
    """Wait for all processes, and return their exit codes; none may outlive a failure for long."""
    until = float("inf")
    while True:
        ended = [fleet.ended(key) for key in keys]
        codes = [main.poll(), *(None if one is None else one.code for one in ended)]
        if None not in codes:
            return [code or 0 for code in codes]
        if any(codes) and until == float("inf"):
            until = time.monotonic() + _END_S
        if time.monotonic() > until:
            main.kill()
            for key in keys:
                fleet.stop(key)
            until += _END_S
        time.sleep(_POLL_S)


def _ended(codes: Sequence[int], folder: Path) -> BaseException:
    found = first_failure(folder, attempt=0, wait_s=_RECORD_S)
    if found is not None:
        return SystemExit(found.exit_code) if found.rank == 0 else found.error(folder)
    rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return ResourceError(
        f"the run ended because the process of rank {rank} {how}",
        why="If nobody killed it, the machine probably ran out of memory, which `dmesg` shows.",
        fix=f"Read its log ({log_file(folder, rank)}), then type the same command to resume.",
    )

"""Start the ranks of a script through torchrun, and end all of their processes whatever happens."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Final

import psutil

from stepladder.parallel.place import OF_LAUNCHERS
from stepladder.watching.ranks.place import LAUNCHED

_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
GRACE_S: Final = 15.0  # for ranks that report their end after a signal, or after another one died
_END_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG of prctl(2)


def launch(num: int, words: Sequence[str], *, has_failed: Callable[[], bool]) -> int:
    """Run a command of stepladder in several processes of this machine, and wait for their end.

    They inherit stdout and stderr. A SIGINT or SIGTERM is passed on to them. If one has failed, or
    after a signal, those that have not ended within 15 seconds are killed.

    Args:
        num: of processes.
        words: arguments of `stepladder`.
        has_failed: returns True once a rank has reported a failure.

    Returns:
        The exit code of torchrun; 128 + n after signal n.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(num), "-m", "stepladder", *words]
    env = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    # A session of its own: Ctrl-C in the terminal reaches the ranks once, through torchrun.
    process = subprocess.Popen(
        command, env={**env, LAUNCHED: "1"}, start_new_session=True, preexec_fn=_end_with_parent
    )
    known: dict[int, psutil.Process] = {}
    try:
        with _signals() as received:
            _wait(process, known, received, has_failed)
        code = process.wait()
        if received:
            return 128 + received[0]
        return 128 - code if code < 0 else code
    finally:
        _remember(process, known)
        _kill(process, known)


def _wait(
    process: subprocess.Popen[bytes],
    known: dict[int, psutil.Process],
    received: Sequence[int],
    has_failed: Callable[[], bool],
) -> None:
    """Wait for the end of torchrun; kill everything if that takes too long after a failure."""
    num_passed, looked, until = 0, 0.0, float("inf")
    while process.poll() is None:
        now = monotonic()
        if len(received) > num_passed:
            with suppress(ProcessLookupError):
                process.send_signal(received[num_passed])
            num_passed += 1
            until = min(until, now + (GRACE_S if num_passed == 1 else 0.0))
        if now - looked > _LOOK_S:
            looked = now
            _remember(process, known)
            if until == float("inf") and has_failed():
                until = now + GRACE_S
        if now > until:
            _kill(process, known)
        sleep(_POLL_S)


def _remember(process: subprocess.Popen[bytes], known: dict[int, psutil.Process]) -> None:
    """Remember all processes that were started, before torchrun is gone."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            known.setdefault(child.pid, child)


def _kill(process: subprocess.Popen[bytes], known: dict[int, psutil.Process]) -> None:
    """Kill torchrun and all processes that were started below it."""
    _remember(process, known)
    if process.poll() is None:
        process.kill()
    process.wait()
    for child in known.values():
        with suppress(psutil.Error):  # it has ended; psutil does not kill one with the same number
            child.kill()
    psutil.wait_procs(list(known.values()), timeout=2)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that would end this process."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def note(number: int, _frame: object) -> None:
        received.append(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent() -> None:
    """Let torchrun end its ranks if this process is killed (Linux)."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGTERM)

"""Signals that end a run: recorded at once, and handled by the loop after the current step."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final, Self

from stepladder.errors import InterruptedRun

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalGuard:
    """Make SIGINT, SIGTERM and SIGHUP set `requested` instead of ending the process.

    Within a Slurm job, SIGUSR1 does so, too: `sbatch --signal=USR1@120` sends it before the time
    limit.

    A second Ctrl-C raises KeyboardInterrupt at once. A closed terminal (SIGHUP) counts as SIGTERM,
    unless `nohup` ignores it. Python delivers signals only to the main thread: in any other thread
    this does nothing.

    Attributes:
        requested: number of the first signal (SIGTERM for SIGHUP); 0 before the first.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            is_slurm = "SLURM_JOB_ID" in os.environ
            for number in (*_ENDING, *([signal.SIGUSR1] if is_slurm else [])):
                before = signal.getsignal(number)
                if number == signal.SIGHUP and before == signal.SIG_IGN:
                    continue
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._before:
            number, before = self._before.popitem()
            # None: set by code outside Python, and cannot be restored
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def interruption(self, *, fix: str | None = None) -> InterruptedRun:
        """Return the error that ends the run once its state is saved; exit code 130 or 143."""
        number = signal.Signals(self.requested)
        what = f"{number.name} ended the run; its state is saved"
        return InterruptedRun(what, signal_number=number, fix=fix)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.requested:
            self.requested = int(signal.SIGTERM if number == signal.SIGHUP else number)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

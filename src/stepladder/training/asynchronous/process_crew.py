"""Workers in processes of this machine, which may end and are started again."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from stepladder import errors
from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import Recipe
from stepladder.errors import ResourceError, StepladderError
from stepladder.parallel.asynchronous.link import Message, ServerLink, zeromq
from stepladder.training.asynchronous.contribution import Contribution, Work
from stepladder.training.asynchronous.crew import Arrival
from stepladder.training.asynchronous.worker import Hired

_WORKER: Final = "stepladder.training.asynchronous.worker"
_POLL_S: Final = 0.2
_END_S: Final = 2.0
_LAST_LINES: Final = 3
_AWAY_S: Final = 1.0
_TIMES_AS_LONG: Final = 20  # as the longest step so far, until a worker is taken to hang
_SHARED_MEMORY: Final = Path("/dev/shm")
_LEAST_FREE_BYTES: Final = 1_000_000_000
_PREFIX: Final = "stepladder-workers-"
_LOCK: Final = "lock"


@dataclass
class _Employed:
    """A worker's process.

    Attributes:
        life: how often it was started before.
        is_ready: it has reported that it can work.
        waiting: work that it gets once it is ready.
        num_ends: how often it ended since it last sent something.
        why: it was ended by this process.
    """

    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    life: int = 0
    is_ready: bool = False
    waiting: tuple[Work, Tensor, Tensor] | None = None
    num_ends: int = 0
    why: str = ""


class ProcessCrew:
    """Workers that compute in processes of their own; see `Crew`.

    Args:
        task: its name for other processes.
        logs: folder for what the workers print.
        at: epoch, and examples of it that the run has used so far.
        restarts: how often a worker is started again before it has sent something.
        meet_s: seconds until a worker has to be ready.
        stall_s: seconds without a sign of life, or without progress in its work, after which it is
            ended, and started again.
        num_train: examples of an epoch.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: str,
        *,
        logs: Path,
        at: tuple[int, int],
        num_train: int,
        restarts: int,
        meet_s: float,
        stall_s: float,
    ) -> None:
        self._recipe, self._task, self._logs = recipe, task, logs
        self._restarts, self._meet_s, self._stall_s = restarts, meet_s, stall_s
        zeromq()
        logs.mkdir(parents=True, exist_ok=True)
        self._num_train = num_train
        self._folder, self._lock = _private_folder()
        self._address = f"ipc://{self._folder / 'server'}"
        self._began_s = self._left_s = self._resumed_s = time.monotonic()
        self._checked_s = self._longest_s = 0.0
        self._is_closed = False
        self._workers: list[_Employed] = []
        self._link = ServerLink(self._address)
        try:
            for worker in range(recipe.asynchronous.workers):
                self._workers.append(self._start(worker, 0, at))
        except BaseException:
            self.close()
            raise

    @property
    def num(self) -> int:
        """Return the number of workers."""
        return len(self._workers)

    @property
    def shared(self) -> Path | None:
        """Return the folder of the weights that all workers change; None: each has a copy."""
        return self._folder if self._recipe.asynchronous.method is AsyncMethod.HOGWILD else None

    def begin(self, worker: int, work: Work, weights: Tensor, statistics: Tensor) -> None:
        """Send a worker its work, now or once it is ready; see `Crew`."""
        there = self._workers[worker]
        if there.is_ready:
            self._send(worker, work, weights, statistics)
        else:
            there.waiting = (work, weights.clone(), statistics.clone())

    def next(self, num_seen: int) -> Arrival | None:
        """Wait for what a worker sends; see `Crew`."""
        if time.monotonic() - self._left_s > _AWAY_S:  # signs of life are still to be read
            self._resumed_s = time.monotonic()
        try:
            return self._next(num_seen)
        finally:
            self._left_s = time.monotonic()

    def _next(self, num_seen: int) -> Arrival | None:
        while True:
            lost = self._lost()
            if lost is not None:
                self._replace(lost, divmod(num_seen, self._num_train))
                return Arrival(lost, None, self._elapsed_s())
            found = self._link.receive(_POLL_S)
            if found is None:
                return None
            message, life = found
            there = self._workers[message.worker]
            if life != there.life:
                continue
            if message.kind == "error":
                raise _error(message)
            if message.kind == "hello":
                there.is_ready = True
                if there.waiting is not None:
                    self._send(message.worker, *there.waiting)
                    there.waiting = None
                continue
            there.num_ends = 0
            change, buffers = message.tensors
            values = dict(message.values)
            self._longest_s = max(self._longest_s, values.pop("longest_s"))
            found_sums = Contribution(**values, change=change, buffers=buffers)
            return Arrival(message.worker, found_sums, self._elapsed_s())

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for worker, there in enumerate(self._workers):
            self._link.send(worker, "stop", {}, life=there.life)
        until = time.monotonic() + _END_S
        for there in self._workers:
            try:
                there.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(there.process)
        self._workers = []
        self._link.close()
        os.close(self._lock)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _start(self, worker: int, life: int, at: tuple[int, int]) -> _Employed:
        hired = Hired(
            recipe=self._recipe,
            task=self._task,
            address=self._address,
            worker=worker,
            life=life,
            at=at,
            server=os.getpid(),
            shared=self.shared,
        )
        file = self._folder / f"worker-{worker}"
        file.write_bytes(pickle.dumps(hired))
        log = self._logs / f"worker-{worker}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", _WORKER, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "RANK": str(worker), "LOCAL_RANK": str(worker)},
                start_new_session=True,  # Ctrl-C ends this process, which ends the others
            )
        return _Employed(process, log, time.monotonic(), life)

    def _send(self, worker: int, work: Work, weights: Tensor, statistics: Tensor) -> None:
        """Send work; a worker that has ended is found later."""
        life = self._workers[worker].life
        tensors = (weights if self.shared is None else weights[:0], statistics)
        self._link.send(worker, "work", work._asdict(), *tensors, life=life)

    def _lost(self) -> int | None:
        """Return a worker that has ended, or shows no sign of life; asked now and then."""
        now = time.monotonic()
        if now < self._checked_s + _POLL_S:
            return None
        for worker, there in enumerate(self._workers):
            if there.process.poll() is not None:
                return worker
            there.why = self._why_end(worker, there, now)
            if there.why:
                _kill(there.process)
                return worker
        self._checked_s = now
        return None

    def _why_end(self, worker: int, there: _Employed, now: float) -> str:
        """Return why a worker is ended; empty: it is not.

        Nothing counts that happened while this process was busy elsewhere, such as validating.
        """
        since_s = now - max(there.started_s, self._resumed_s)
        if not there.is_ready:
            is_late = since_s > self._meet_s
            return f"was not ready within --run.meet-s {self._meet_s:g}" if is_late else ""
        silent_s = min(since_s, now - self._link.heard_s.get(worker, 0.0))
        if silent_s > self._stall_s:
            return f"showed no sign of life for {silent_s:.0f} s (--run.stall-s)"
        still_s = self._link.still_s.get(worker, 0.0)
        longest_s = self._longest_s if self._longest_s else self._meet_s
        if still_s > max(self._stall_s, _TIMES_AS_LONG * longest_s):
            return f"made no progress for {still_s:.0f} s (--run.stall-s)"
        return ""

    def _replace(self, worker: int, at: tuple[int, int]) -> None:
        """Start a worker again.

        Raises:
            ResourceError: if it ends again and again.
        """
        before = self._workers[worker]
        num_ends = before.num_ends + 1
        if num_ends > self._restarts:
            how = before.why or _ended(before.process)
            raise ResourceError(
                f"worker {worker} {how}, {num_ends} times in a row",
                where=str(before.log),
                why=_last_words(before.log)
                or ("" if before.why else "If nobody killed it, the machine ran out of memory."),
                fix=f"Read this file, or use fewer workers: --asynchronous.workers "
                f"{max(1, self.num - 1)}",
            )
        self._link.still_s.pop(worker, None)
        there = self._start(worker, before.life + 1, at)
        there.num_ends = num_ends
        self._workers[worker] = there


def _private_folder() -> tuple[Path, int]:
    """Return a new folder, in memory if there is enough, and the open file that locks it.

    Folders that nobody locks are removed: a process that was killed leaves one.
    """
    is_there = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    fast = is_there and shutil.disk_usage(_SHARED_MEMORY).free > _LEAST_FREE_BYTES
    parent = Path(_SHARED_MEMORY if fast else tempfile.gettempdir())
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError):  # it is in use, or another user's
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(handle)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    handle = os.open(folder / f".{_LOCK}", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    (folder / f".{_LOCK}").rename(folder / _LOCK)  # it is locked before others can find it
    return folder, handle


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker and what it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " ".join(line.strip() for line in lines[-_LAST_LINES:])


def _error(message: Message) -> StepladderError:
    """Return the error that a worker has raised."""
    values: dict[str, Any] = dict(message.values)
    kind = getattr(errors, values.pop("type"), StepladderError)
    error: StepladderError = kind(values.pop("what"), **values)
    return error

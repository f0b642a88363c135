"""Workers in processes of this machine, which may end and are started again."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from stepladder import errors
from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import Recipe
from stepladder.errors import ResourceError, StepladderError
from stepladder.parallel.asynchronous.link import Message, ServerLink
from stepladder.training.asynchronous.contribution import Contribution, Work
from stepladder.training.asynchronous.crew import Arrival
from stepladder.training.asynchronous.worker import Hired

_WORKER: Final = "stepladder.training.asynchronous.worker"
_POLL_S: Final = 0.2
_END_S: Final = 2.0
_LAST_LINES: Final = 3
_SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass
class _Employed:
    """A worker's process.

    Attributes:
        life: how often it was started before.
        is_ready: it has reported that it can work.
        waiting: work that it gets once it is ready.
        num_ends: how often it ended since it last sent something.
    """

    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    life: int = 0
    is_ready: bool = False
    waiting: tuple[Work, Tensor, Tensor] | None = None
    num_ends: int = 0


class ProcessCrew:
    """Workers that compute in processes of their own; see `Crew`.

    Args:
        task: its name for other processes.
        logs: folder for what the workers print.
        num_seen: examples that the run has used so far.
        restarts: how often a worker is started again before it has sent something.
        meet_s: seconds until a worker has to be ready.
        stall_s: seconds without a sign of life after which it is ended, and started again.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: str,
        *,
        logs: Path,
        num_seen: int,
        restarts: int,
        meet_s: float,
        stall_s: float,
    ) -> None:
        self._recipe, self._task, self._logs = recipe, task, logs
        self._restarts, self._meet_s, self._stall_s = restarts, meet_s, stall_s
        logs.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="stepladder-", dir=_fast_folder()))
        self._address = f"ipc://{self._folder / 'server'}"
        self._link = ServerLink(self._address)
        self._began_s = time.monotonic()
        self._checked_s = 0.0
        self._workers: list[_Employed] = []
        try:
            for worker in range(recipe.asynchronous.workers):
                self._workers.append(self._start(worker, 0, num_seen))
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

    def next(self, num_seen: int) -> Arrival:
        """Wait for what a worker sends; see `Crew`."""
        while True:
            lost = self._lost()
            if lost is not None:
                self._replace(lost, num_seen)
                return Arrival(lost, None, self._elapsed_s())
            found = self._link.receive(_POLL_S)
            if found is None:
                continue
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
            found_sums = Contribution(**message.values, change=change, buffers=buffers)
            return Arrival(message.worker, found_sums, self._elapsed_s())

    def close(self) -> None:
        """End the processes."""
        for worker, there in enumerate(self._workers):
            self._link.send(worker, "stop", {}, life=there.life)
        until = time.monotonic() + _END_S
        for there in self._workers:
            try:
                there.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                there.process.kill()
                there.process.wait()
        self._workers = []
        self._link.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _start(self, worker: int, life: int, num_seen: int) -> _Employed:
        hired = Hired(
            recipe=self._recipe,
            task=self._task,
            address=self._address,
            worker=worker,
            life=life,
            num_seen=num_seen,
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
            heard_s = max(self._link.heard_s.get(worker, 0.0), there.started_s)
            limit_s = self._stall_s if there.is_ready else self._meet_s
            is_late = not there.is_ready and now - there.started_s > limit_s
            if is_late or now - heard_s > limit_s:
                there.process.kill()
                there.process.wait()
                return worker
        self._checked_s = now
        return None

    def _replace(self, worker: int, num_seen: int) -> None:
        """Start a worker again.

        Raises:
            ResourceError: if it ends again and again.
        """
        before = self._workers[worker]
        num_ends = before.num_ends + 1
        if num_ends > self._restarts:
            raise ResourceError(
                f"worker {worker} {_ended(before.process)}, {num_ends} times in a row",
                where=str(before.log),
                why=_last_words(before.log)
                or "If nobody killed it, the machine ran out of memory.",
                fix=f"Read this file, or use fewer workers: --asynchronous.workers "
                f"{max(1, self.num - 1)}",
            )
        there = self._start(worker, before.life + 1, num_seen)
        there.num_ends = num_ends
        self._workers[worker] = there


def _fast_folder() -> str | None:
    """Return a folder in memory; None: the usual one for temporary files."""
    is_there = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    return str(_SHARED_MEMORY) if is_there else None


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

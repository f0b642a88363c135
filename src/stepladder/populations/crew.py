"""Processes that train slices of members at the same time."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import torch

from stepladder.errors import ResourceError
from stepladder.machine import num_cores
from stepladder.populations.members import IntervalCancelled
from stepladder.populations.slices import Order
from stepladder.records.from_json import from_json
from stepladder.records.population import Score

_END_S: Final = 10.0
_LOG: Final = "worker-{}.log"


@dataclass(frozen=True, kw_only=True)
class CrewSpec:
    """What the processes need to open the job.

    Attributes:
        num: number of processes.
        config: YAML file of the job, with all choices made.
        task: name of the Task, for `load_task`.
        folder: of the checkpoints, and of the logs.
    """

    num: int
    config: Path
    task: str
    folder: Path


class Crew:
    """Worker processes; each has a part of the cores, or a GPU, and its own log.

    They end when their input is closed: if this process dies, so do they, after their slices.

    Args:
        spec: what they need.
        is_cancelled: returns True if the population is to end.

    Raises:
        ResourceError: if one does not start.
    """

    def __init__(self, spec: CrewSpec, *, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._is_cancelled = is_cancelled
        self._spec = spec
        self._workers: list[_Worker] = []
        try:
            for idx in range(spec.num):
                self._workers.append(_Worker(spec, idx))
            for worker in self._workers:
                worker.receive()  # it is ready
        except BaseException:
            self.close()
            raise

    def train(self, orders: Sequence[Order]) -> list[Score]:
        """Train slices, each in the next process that is free.

        Raises:
            ResourceError: if a process fails or dies; the others are ended.
            IntervalCancelled: if the population is to end; all are ended.
        """
        left: queue.SimpleQueue[tuple[int, Order]] = queue.SimpleQueue()
        for item in enumerate(orders):
            left.put(item)
        scores: dict[int, Score] = {}
        errors: list[BaseException] = []

        def work(worker: _Worker) -> None:
            with suppress(queue.Empty):
                while not errors:
                    idx, order = left.get_nowait()
                    try:
                        scores[idx] = worker.train(order)
                    except BaseException as error:
                        errors.append(error)

        threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            self._wait(thread, errors)
        if self._is_cancelled():
            raise IntervalCancelled
        if errors:
            raise errors[0]
        return [scores[idx] for idx in range(len(orders))]

    def _wait(self, thread: threading.Thread, errors: list[BaseException]) -> None:
        """Wait for a thread; end the processes if one of them failed, or the population ends."""
        while thread.is_alive():
            thread.join(0.1)
            if errors or self._is_cancelled():
                self.close()

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()


def gpu_of(idx: int, num: int, env: Mapping[str, str]) -> str:
    """Return the GPU of a worker: of those that this process may use, in turn.

    Args:
        num: how many it may use.
        env: which may name them.
    """
    named = [one.strip() for one in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()]
    return (named or [str(number) for number in range(num)])[idx % num]


class _Worker:
    """One process, started in a session of its own, so that Ctrl-C does not reach it."""

    def __init__(self, spec: CrewSpec, idx: int) -> None:
        self._log = spec.folder / _LOG.format(idx)
        self._name = f"worker {idx}"
        ours, theirs = os.pipe()
        env = dict(os.environ)
        is_cuda = torch.cuda.is_available()
        if is_cuda:
            env["CUDA_VISIBLE_DEVICES"] = gpu_of(idx, torch.cuda.device_count(), env)
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stepladder.populations.worker", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs,),
                env=env,
                text=True,
                start_new_session=True,
            )
        os.close(theirs)
        self._answers = os.fdopen(ours)
        self._send(
            {
                "config": str(spec.config),
                "task": spec.task,
                "folder": str(spec.folder),
                "threads": 0 if is_cuda else max(1, num_cores() // spec.num),
            }
        )

    def train(self, order: Order) -> Score:
        """Train a slice, and return its score."""
        self._send(
            {
                "values": order.values,
                "seed": order.seed,
                "begin": order.begin,
                "name": order.name,
                "until": order.until,
            }
        )
        return from_json(Score, self.receive()["score"])

    def receive(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            ResourceError: if the process failed or died.
        """
        line = self._answers.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        if found and "error" not in found:
            return found
        raise ResourceError(
            found.get("error", "it ended without an answer"),
            where=f"{self._name} of the population",
            why=f"What it printed is in {self._log}.",
            fix="Type the same command to continue from the last selection, with "
            "--population.workers 1 to train in this process.",
        )

    def close(self) -> None:
        """Close its input, and end it if it does not end by itself."""
        with suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        found = _tree(self._process.pid)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for one in found:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with suppress(OSError):
            self._answers.close()

    def _send(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` says that it is gone
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()


def _tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []

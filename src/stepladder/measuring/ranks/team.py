"""Processes that join this one's measurements: one for each device, which wait for commands.

Those of this host are started here and talk through a socket pair. Those of other hosts are started
by a fleet, and connect to this process.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from stepladder.errors import ResourceError, StepladderError
from stepladder.measuring.ranks.processes import Door, Here, Process, There
from stepladder.parallel.failures import is_loss_of_rank
from stepladder.parallel.fleet import Fleet, Spot
from stepladder.parallel.place import Place

_HERE: Final = "127.0.0.1"
_POLL_S: Final = 0.05
_END_S: Final = 5.0  # for a process to end by itself
_MEET_S: Final = 120.0  # until all processes have imported torch and met
_LAST_LINES: Final = 3


class Member(NamedTuple):
    """What a process of a team gets at its start.

    Attributes:
        place: its place among the others.
        is_cuda: it uses the GPU of its local rank.
        meet_s: seconds to wait for the others.
        make: makes what answers its commands, from the world and `arguments`; called in the
            process, so it is a function at the top level of a module.
    """

    place: Place
    is_cuda: bool
    meet_s: float
    make: Callable[..., Any]
    arguments: dict[str, Any]


class Answer(NamedTuple):
    """What a process returns for a command.

    Attributes:
        value: the result; None if it failed.
        error: what it failed with.
        is_loss: it failed because another process has ended.
    """

    value: Any = None
    error: BaseException | None = None
    is_loss: bool = False


class Team:
    """Processes that have joined each other, and wait for commands.

    A context manager. A process that dies ends all of them, and none outlives this process.

    Args:
        num: of processes.
        make: called in each process as `make(world, **arguments)`; returns an object whose methods
            are the commands, and whose `close` is called at the end. A function at the top level
            of a module, as it is pickled.
        arguments: of it, pickled.
        is_cuda: gradients are on GPUs.
        folder: for what the processes print.
        fleet: starts the processes that this machine has no place for; None: all of them are here.

    Attributes:
        start_s: seconds until all processes had met.

    Raises:
        ResourceError: if a process ends before it is ready.
        StepladderError: if `make` raises it.
    """

    def __init__(
        self,
        num: int,
        make: Callable[..., Any],
        arguments: dict[str, Any],
        *,
        is_cuda: bool,
        folder: Path,
        fleet: Fleet | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._processes: list[Process] = []
        self._connections: list[Connection[Any, Any]] = []
        started = time.perf_counter()
        num_here = num if fleet is None else min(num, fleet.place.local_size)
        is_here = num_here == num
        host = _HERE if fleet is None or is_here else fleet.host
        # this process has the store by which the others find each other
        self._store = TCPStore(
            host, 0, is_master=True, timeout=timedelta(seconds=_MEET_S), wait_for_workers=False
        )
        try:
            for rank in range(num_here):
                here = Here(folder / f"rank-{rank}.log")
                self._processes.append(here)
                self._connections.append(here.connection)
            if fleet is not None and not is_here:
                self._start_elsewhere(fleet, range(num_here, num))
            for rank, connection in enumerate(self._connections):
                spot = Spot(rank, num) if fleet is None or is_here else fleet.spots[rank]
                place = Place(
                    rank=rank,
                    size=num,
                    local_rank=spot.local_rank,
                    local_size=spot.local_size,
                    address=host,
                    port=self._store.port,
                    has_agent=True,
                )
                send(connection, Member(place, is_cuda, _MEET_S, make, arguments))
            self._answers()
            self.start_s = time.perf_counter() - started
            self._answers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, command: str, **arguments: Any) -> list[Any]:
        """Run a command in all processes at once, and return the results in their order.

        Raises:
            StepladderError: what a process has raised.
            ResourceError: if a process ended.
        """
        for connection in self._connections:
            with contextlib.suppress(BrokenPipeError):  # it has ended: `_answers` reports it
                send(connection, (command, arguments))
        return self._answers()

    def close(self) -> None:
        """End the processes, and wait for them."""
        for connection in self._connections:
            connection.close()  # which ends a process that waits for a command
        until = time.monotonic() + _END_S
        for process in self._processes:
            if process.wait(max(0.0, until - time.monotonic())) is None:
                process.kill()
        self._connections, self._processes = [], []

    def _start_elsewhere(self, fleet: Fleet, ranks: range) -> None:
        with Door(fleet) as door:
            there: dict[int, There] = {rank: door.start(rank) for rank in ranks}
            self._processes += there.values()
            came = door.let_in(there, within_s=_MEET_S)
            self._connections += [came[rank] for rank in ranks]

    def _answers(self) -> list[Any]:
        """Wait for the answers of all processes; the first error ends the wait.

        The loss of another process is only a consequence, so it does not end the wait.
        """
        answers: dict[int, Answer] = {}
        while len(answers) < len(self._connections):
            for rank, connection in enumerate(self._connections):
                if rank in answers:
                    continue
                answer = self._answer(rank, connection)
                if answer is None:
                    continue
                if answer.error is not None and not answer.is_loss:
                    raise answer.error
                answers[rank] = answer
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        return [answers[rank].value for rank in range(len(answers))]

    def _answer(self, rank: int, connection: Connection[Any, Any]) -> Answer | None:
        """Return the answer of one process; None if it has not answered yet.

        Raises:
            ResourceError: if it has ended.
        """
        try:
            if connection.poll(_POLL_S):
                answer: Answer = receive(connection)
                return answer
        except (EOFError, OSError):
            pass
        else:
            return None
        process = self._processes[rank]
        code = process.wait(_END_S)
        how = f"ended with code {code}"
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        raise ResourceError(
            f"the process of device {rank} {how}",
            why=process.last_words() or "If nobody killed it, the machine ran out of memory.",
            fix="To leave other devices out, type --devices 1.",
        )


def send(connection: Connection[Any, Any], value: object) -> None:
    """Send a value, pickled.

    `Connection.send` would share the memory of tensors, which outlives neither process.
    """
    connection.send_bytes(pickle.dumps(value))


def receive(connection: Connection[Any, Any]) -> Any:
    """Receive a value of `send`, from a process of the same team."""
    return pickle.loads(connection.recv_bytes())


def as_answer(error: BaseException) -> Answer:
    """Return an error as an answer; other errors than our own become text, as they may not pickle.

    A `DivergedError` stays one: it decides the verdict on a rung.
    """
    if isinstance(error, StepladderError):
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return Answer(error=error)
    is_loss = is_loss_of_rank(error)
    what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    fix = "To leave other devices out, type --devices 1."
    error = ResourceError(f"the process of a device raised {what}", fix=fix)
    return Answer(error=error, is_loss=is_loss)

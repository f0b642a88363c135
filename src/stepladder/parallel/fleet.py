"""Start programs in the places of a launcher's processes: rank 0 asks, and the others start them.

A climb under torchrun or srun runs in rank 0. The other ranks wait for what it wants to start, such
as the processes of a measurement, or those of the final training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import IO, Any, Final, NamedTuple

from stepladder.errors import ResourceError
from stepladder.parallel.place import OF_LAUNCHERS, Place

_END: Final = "fleet/end"
_POLL_S: Final = 0.1
_SAVE_S: Final = 30.0  # for a training that saves its state after a signal
_LAST_BYTES: Final = 2000


class Ended(NamedTuple):
    """A program that has ended.

    Attributes:
        code: exit code; -n after signal n.
        last: the end of what it printed.
    """

    code: int
    last: str


class Spot(NamedTuple):
    """Where a rank is on its host."""

    local_rank: int
    local_size: int


class Fleet:
    """The processes of a launcher, as rank 0 sees them.

    Args:
        place: of rank 0.
        store: that of rank 0, which the other ranks read.
        spots: of all ranks.

    Attributes:
        host: address of rank 0 by which the others reach it.
    """

    def __init__(self, place: Place, store: Any, spots: Sequence[Spot]) -> None:
        self.place, self.spots = place, tuple(spots)
        self.host: str = store.host
        self._store = store
        self._numbers = [0] * place.size

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.place.size

    def start(self, rank: int, words: Sequence[str], env: Mapping[str, str]) -> str:
        """Start `python WORDS` in the place of another rank, and return a key for it."""
        key = f"fleet/{rank}/{self._numbers[rank]}"
        self._numbers[rank] += 1
        self._store.set(key, json.dumps({"words": list(words), "env": dict(env)}))
        return key

    def ended(self, key: str) -> Ended | None:
        """Return how a program ended; None if it runs."""
        if not self._store.check([f"{key}/ended"]):
            return None
        return Ended(*json.loads(self._store.get(f"{key}/ended")))

    def stop(self, key: str) -> None:
        """Kill a program."""
        self._store.set(f"{key}/stop", "1")

    def close(self) -> None:
        """Let the other ranks end."""
        with suppress(RuntimeError):
            self._store.set(_END, "1")


@contextmanager
def opened_fleet(place: Place | None, *, meet_s: float) -> Iterator[Fleet | None]:
    """Wait for the other ranks of a launcher, in rank 0, and let them end after the block.

    Args:
        place: of rank 0; None: this process is alone.
        meet_s: seconds to wait for the others.

    Raises:
        ResourceError: if one of them does not come.
    """
    if place is None or place.size == 1:
        yield None
        return
    from stepladder.parallel.group import store_of_launcher

    store = store_of_launcher(place, meet_s)
    spots = [Spot(place.local_rank, place.local_size)]
    for rank in range(1, place.size):
        try:
            store.wait([f"fleet/{rank}/here"], timedelta(seconds=meet_s))
        except RuntimeError as error:
            raise ResourceError(
                f"rank {rank} of {place.size} did not come within {meet_s:g} s",
                where=f"{place.address}:{place.port}",
                fix="Start stepladder climb on all machines, with the same torchrun arguments. "
                "--run.meet-s 600 waits longer.",
            ) from error
        spots.append(Spot(*json.loads(store.get(f"fleet/{rank}/here"))))
    fleet = Fleet(place, store, spots)
    try:
        yield fleet
    finally:
        fleet.close()
        time.sleep(3 * _POLL_S)  # the store ends with this process: the others read it first


@dataclass(kw_only=True)
class _Program:
    process: subprocess.Popen[bytes]
    output: IO[bytes]

    def last_words(self) -> str:
        size = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(0, size - _LAST_BYTES))
        return self.output.read().decode(errors="replace").strip()


@dataclass(kw_only=True)
class _Server:
    """Starts what rank 0 asks for, in the place of one rank."""

    place: Place
    store: Any
    programs: dict[str, _Program] = field(default_factory=dict)
    number: int = 0

    def run(self) -> None:
        """Serve until rank 0 has ended."""
        spot = [self.place.local_rank, self.place.local_size]
        self.store.set(f"fleet/{self.place.rank}/here", json.dumps(spot))
        with suppress(RuntimeError):  # the store is gone: so is rank 0
            while not self.store.check([_END]):
                self._start_next()
                self._report()
                time.sleep(_POLL_S)

    def _start_next(self) -> None:
        key = f"fleet/{self.place.rank}/{self.number}"
        if not self.store.check([key]):
            return
        self.number += 1
        wanted = json.loads(self.store.get(key))
        environ = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
        output = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
        process = subprocess.Popen(
            [sys.executable, *wanted["words"]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environ, **wanted["env"]},
            start_new_session=True,
        )
        self.programs[key] = _Program(process=process, output=output)

    def _report(self) -> None:
        for key, program in list(self.programs.items()):
            code = program.process.poll()
            if code is None:
                if self.store.check([f"{key}/stop"]):
                    program.process.kill()
                continue
            self.store.set(f"{key}/ended", json.dumps([code, program.last_words()]))
            program.output.close()
            del self.programs[key]

    def close(self) -> None:
        """End all programs; a training saves its state first."""
        for program in self.programs.values():
            program.process.terminate()
        until = time.monotonic() + _SAVE_S
        for program in self.programs.values():
            try:
                program.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()
            program.output.close()


def serve(place: Place, *, meet_s: float) -> None:
    """Start what rank 0 asks for, in any other rank, until rank 0 has ended.

    Raises:
        ResourceError: if rank 0 does not come within `meet_s` seconds.
    """
    from stepladder.parallel.group import store_of_launcher

    store = store_of_launcher(place, meet_s)

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    server = _Server(place=place, store=store)
    try:
        server.run()
    finally:
        server.close()
        signal.signal(signal.SIGTERM, before)

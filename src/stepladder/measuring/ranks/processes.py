"""The processes of a team: on this host, or on another one through a fleet."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, Final, Protocol

from stepladder.errors import ResourceError
from stepladder.parallel.fleet import Fleet
from stepladder.parallel.place import OF_LAUNCHERS

MEMBER: Final = "stepladder.measuring.ranks.member"
KEY: Final = "STEPLADDER_TEAM_KEY"
"""Variable with the secret by which a process on another host shows that it is of the team."""
_POLL_S: Final = 0.05
_MEET_S: Final = 30  # for a process that connects to say who it is
_SECONDS: Final = struct.Struct("ll")  # of the C library
_LAST_LINES: Final = 3


class Process(Protocol):
    """A process of a team."""

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit code; None if it still runs after some seconds."""

    def kill(self) -> None:
        """Kill it."""

    def last_words(self) -> str:
        """Return the last lines that it printed."""


class Here:
    """A process of this host, and a connection to it.

    Args:
        log: file for what it prints.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        ours, theirs = socket.socketpair()
        environ = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
        with log.open("ab") as file, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MEMBER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=(theirs.fileno(),),
                env=environ,
                start_new_session=True,  # Ctrl-C ends this process, which ends the others
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())

    def wait(self, timeout_s: float) -> int | None:
        """See `Process`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:
        """See `Process`."""
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """See `Process`."""
        try:
            return _last(self._log.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return ""


class There:
    """A process in the place of another rank of a launcher."""

    def __init__(self, fleet: Fleet, key: str) -> None:
        self._fleet, self._key = fleet, key

    def wait(self, timeout_s: float) -> int | None:
        """See `Process`."""
        until = time.monotonic() + timeout_s
        while True:
            ended = self._fleet.ended(self._key)
            if ended is not None:
                return ended.code
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """See `Process`."""
        self._fleet.stop(self._key)

    def last_words(self) -> str:
        """See `Process`."""
        ended = self._fleet.ended(self._key)
        return "" if ended is None else _last(ended.last)


class Door:
    """Where processes of other hosts come in; a context manager.

    Args:
        fleet: that starts them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._key = secrets.token_hex(16)
        self._socket = socket.create_server(("", 0))  # a host may resolve its own name to loopback
        self._socket.settimeout(_POLL_S)

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start(self, rank: int) -> There:
        """Start a process in the place of a rank."""
        address = [self._fleet.host, str(self._socket.getsockname()[1]), str(rank)]
        key = self._fleet.start(rank, ["-m", MEMBER, *address], {KEY: self._key})
        return There(self._fleet, key)

    def let_in(
        self, processes: dict[int, There], *, within_s: float
    ) -> dict[int, Connection[Any, Any]]:
        """Return the connections of all processes, by rank.

        Raises:
            ResourceError: if one has ended, or does not come.
        """
        found: dict[int, Connection[Any, Any]] = {}
        until = time.monotonic() + within_s
        while len(found) < len(processes):
            with suppress(TimeoutError):
                stranger, _ = self._socket.accept()
                self._meet(stranger, found)
            for rank in processes.keys() - found.keys():
                code = processes[rank].wait(0.0)
                if code is not None or time.monotonic() > until:
                    how = f"ended with code {code}" if code is not None else "did not connect"
                    last = processes[rank].last_words()
                    raise ResourceError(
                        f"the process of rank {rank}, on another host, {how}"
                        + (f": {last}" if last else ""),
                        where=self._fleet.host,
                        fix="The hosts must reach each other at any port. On that host, type: "
                        "stepladder doctor",
                    )
        return found

    def _meet(self, stranger: socket.socket, found: dict[int, Connection[Any, Any]]) -> None:
        connection: Connection[Any, Any] = Connection(os.dup(stranger.fileno()))
        with stranger:
            stranger.settimeout(None)
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECONDS.pack(_MEET_S, 0))
            try:
                deliver_challenge(connection, self._key.encode())
                answer_challenge(connection, self._key.encode())
                rank = int(connection.recv_bytes(16))
            except (AuthenticationError, EOFError, OSError, ValueError):
                connection.close()
                return
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SECONDS.pack(0, 0))
        found[rank] = connection


def knock(host: str, port: int, rank: int) -> Connection[Any, Any]:
    """Connect to the process that a team belongs to, from another host."""
    connection: Connection[Any, Any] = Connection(socket.create_connection((host, port)).detach())
    key = os.environ.pop(KEY).encode()
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send_bytes(str(rank).encode())
    return connection


def _last(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines()[-_LAST_LINES:])

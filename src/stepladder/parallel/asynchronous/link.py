"""Messages between a server and workers that may come and go, by ZeroMQ.

torch.distributed is not used: its process group has a fixed number of ranks, so that a worker that
is started again cannot join, and sending to a rank that is stopped blocks the server until the time
limit (tests/ranks/test_worker_transport.py). A ZeroMQ socket sends in a thread of its own, forgets
a peer that has ended, and lets another one in at any time.

A message is a JSON header and raw float32 tensors; nothing in it is executed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepladder.errors import MissingExtraError

BEAT: Final = "beat"
_EVERY_S: Final = 1.0


class Message(NamedTuple):
    """A message.

    Attributes:
        worker: that sent it, or that it is for.
        kind: what it is about.
        values: numbers and strings.
        tensors: flat, float32.
    """

    worker: int
    kind: str
    values: Mapping[str, Any]
    tensors: tuple[Tensor, ...] = ()


def zeromq() -> Any:
    """Return the module of ZeroMQ.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import zmq
    except ImportError:
        raise MissingExtraError("training by workers", "asynchronous") from None
    return zmq


def _frames(kind: str, values: Mapping[str, Any], tensors: Sequence[Tensor]) -> list[Any]:
    header = json.dumps({"kind": kind, "values": dict(values)}).encode()
    return [header, *(tensor.numpy() for tensor in tensors)]


def _tensor(frame: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(frame, dtype=np.float32).copy())


class ServerLink:
    """The server's end.

    Args:
        address: such as ipc://FILE.
    """

    def __init__(self, address: str) -> None:
        zmq = self._zmq = zeromq()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that is started again
        self._socket.bind(address)
        self.heard_s: dict[int, float] = {}
        self.still_s: dict[int, float] = {}

    def send(
        self, worker: int, kind: str, values: Mapping[str, Any], *tensors: Tensor, life: int = 0
    ) -> bool:
        """Send a message; return False if the worker has ended.

        Args:
            life: how often the worker was started before.
        """
        name = _name(worker, life)
        with suppress(self._zmq.ZMQError):
            self._socket.send_multipart([name, *_frames(kind, values, tensors)])
            return True
        return False

    def receive(self, timeout_s: float) -> tuple[Message, int] | None:
        """Return the next message that is not a beat, and the worker's life; None: nothing came.

        Also notes in `heard_s` when each worker was heard last, and in `still_s` for how many
        seconds it had made no progress in its work then.
        """
        until = time.monotonic() + timeout_s
        while True:
            left_ms = max(0, int(1000 * (until - time.monotonic())))
            if not self._socket.poll(left_ms):
                return None
            name, header, *frames = self._socket.recv_multipart()
            found = json.loads(header)
            number, life = (int(part) for part in name.decode().split(".")[:2])
            self.heard_s[number] = time.monotonic()
            self.still_s[number] = float(found["values"].get("still_s", 0.0))
            if found["kind"] != BEAT:
                tensors = tuple(_tensor(frame) for frame in frames)
                return Message(number, found["kind"], found["values"], tensors), life

    def close(self) -> None:
        """Close it; what was not sent is lost."""
        self._socket.close()
        self._context.term()


class WorkerLink:
    """A worker's end, which also sends a sign of life every second.

    Attributes:
        longest_s: the longest time between two parts of work that were done.
    """

    def __init__(self, address: str, worker: int, life: int) -> None:
        zmq = zeromq()
        self._context = zmq.Context()
        self._worker, self._address = worker, address
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, _name(worker, life))
        self._socket.connect(address)
        self._moved_s: float | None = None  # None: it waits for work
        self.longest_s = 0.0
        beats = threading.Thread(target=self._beat, args=(zmq, life), daemon=True)
        beats.start()

    def send(self, kind: str, values: Mapping[str, Any], *tensors: Tensor) -> None:
        """Send a message to the server."""
        self._socket.send_multipart(_frames(kind, values, tensors))

    def progress(self) -> None:
        """Note that a part of the work is done."""
        now = time.monotonic()
        if self._moved_s is not None:
            self.longest_s = max(self.longest_s, now - self._moved_s)
        self._moved_s = now

    def receive(self) -> Message:
        """Wait for a message of the server."""
        self._moved_s = None
        header, *frames = self._socket.recv_multipart()
        self.progress()
        found = json.loads(header)
        tensors = tuple(_tensor(frame) for frame in frames)
        return Message(self._worker, found["kind"], found["values"], tensors)

    def _beat(self, zmq: Any, life: int) -> None:
        beats = self._context.socket(zmq.DEALER)
        beats.setsockopt(zmq.IDENTITY, _name(self._worker, life) + b".beat")
        beats.connect(self._address)
        while True:
            moved_s = self._moved_s
            still_s = 0.0 if moved_s is None else time.monotonic() - moved_s
            beats.send_multipart(_frames(BEAT, {"still_s": still_s}, ()))
            time.sleep(_EVERY_S)


def _name(worker: int, life: int) -> bytes:
    return f"{worker}.{life}".encode()

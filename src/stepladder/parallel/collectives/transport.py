"""Send tensors from rank to rank: by torch.distributed, or within one process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]


class Work(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Return when it has been sent, or received."""


class Transport(Protocol):
    """Messages of one rank to and from the others; those of one pair arrive in their order."""

    @property
    def rank(self) -> int:
        """Return the number of this rank."""

    @property
    def size(self) -> int:
        """Return p, the number of ranks."""

    def send(self, tensor: Tensor, target: int, tag: int) -> Work:
        """Begin to send; the tensor must not change until the work is done.

        Args:
            tensor: contiguous, with at least one element.
            tag: number that the receiver gives, too; others never meet.
        """

    def receive(self, tensor: Tensor, source: int, tag: int) -> Work:
        """Begin to receive into a tensor."""


@dataclass(frozen=True)
class GlooTransport:
    """Point-to-point messages of torch.distributed.

    gloo sends two large messages between a pair in opposite directions one after the other. With
    one group for messages to higher ranks and one for those to lower ranks, both flow at once.

    Attributes:
        up, down: groups of all ranks, in their order.
    """

    rank: int
    size: int
    up: Any
    down: Any

    @classmethod
    def open(cls, timeout: timedelta) -> GlooTransport:
        """Open both groups, on all ranks of the default group at the same time.

        Args:
            timeout: for a message.
        """
        up, down = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
        return cls(dist.get_rank(), dist.get_world_size(), up, down)

    def send(self, tensor: Tensor, target: int, tag: int) -> Work:
        """Begin to send; see `Transport`."""
        group = self.up if target > self.rank else self.down
        work = dist.isend(tensor, target, group=group, tag=tag)
        assert work is not None
        return work

    def receive(self, tensor: Tensor, source: int, tag: int) -> Work:
        """Begin to receive; see `Transport`."""
        group = self.up if source < self.rank else self.down
        work = dist.irecv(tensor, source, group=group, tag=tag)
        assert work is not None
        return work


def shared_store() -> Store:
    """Return the store by which the ranks of the default group have found each other."""
    store: Store = dist.distributed_c10d._get_default_store()
    return store


class Hub:
    """Connects the ranks of a `MemoryTransport`, each in a thread of its own.

    A message is copied when both sides have called, as gloo and NCCL do with large ones: whatever
    waits in a circle waits for ever.

    Args:
        size: number of ranks.
        timeout_s: seconds for a message.
    """

    def __init__(self, size: int, timeout_s: float = 30.0) -> None:
        self.size = size
        self._timeout_s = timeout_s
        self._change = threading.Condition()
        self._sends: defaultdict[tuple[int, int, int], deque[_Half]] = defaultdict(deque)
        self._receives: defaultdict[tuple[int, int, int], deque[_Half]] = defaultdict(deque)

    def rank(self, rank: int) -> MemoryTransport:
        """Return the transport of a rank."""
        return MemoryTransport(rank, self)

    def meet(self, key: tuple[int, int, int], half: _Half, *, is_send: bool) -> None:
        """Copy the message if its other half is here, or leave this half for it."""
        with self._change:
            own, other = (self._sends, self._receives) if is_send else (self._receives, self._sends)
            if not other[key]:
                own[key].append(half)
                return
            found = other[key].popleft()
            sent, received = (half, found) if is_send else (found, half)
            if sent.tensor.shape != received.tensor.shape:
                raise ValueError(f"{tuple(sent.tensor.shape)} into {tuple(received.tensor.shape)}")
            received.tensor.copy_(sent.tensor)
            half.is_done = found.is_done = True
            self._change.notify_all()

    def wait(self, half: _Half) -> None:
        """Wait until a message has been copied.

        Raises:
            TimeoutError: if that takes too long.
        """
        until = time.monotonic() + self._timeout_s
        with self._change:
            while not half.is_done:
                if not self._change.wait(until - time.monotonic()):
                    raise TimeoutError(f"no message within {self._timeout_s:g} s")


@dataclass(eq=False)
class _Half:
    """One side of a message."""

    hub: Hub = field(repr=False)
    tensor: Tensor
    is_done: bool = False

    def wait(self) -> None:
        self.hub.wait(self)


@dataclass(frozen=True)
class MemoryTransport:
    """Messages between threads of one process; see `Hub`."""

    rank: int
    hub: Hub = field(repr=False)

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.hub.size

    def send(self, tensor: Tensor, target: int, tag: int) -> Work:
        """Begin to send; see `Transport`."""
        half = _Half(self.hub, tensor)
        self.hub.meet((self.rank, target, tag), half, is_send=True)
        return half

    def receive(self, tensor: Tensor, source: int, tag: int) -> Work:
        """Begin to receive; see `Transport`."""
        half = _Half(self.hub, tensor)
        self.hub.meet((source, self.rank, tag), half, is_send=False)
        return half

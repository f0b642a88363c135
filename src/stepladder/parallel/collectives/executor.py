"""Carry out schedules: send, receive and add up the parts of a tensor."""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.parallel.collectives.blame import blamed
from stepladder.parallel.collectives.schedule import Schedule
from stepladder.parallel.collectives.transport import Transport, Work
from stepladder.records.collectives import Link

_MAX_IN_FLIGHT: Final = 4  # pieces that are received at the same time
_PIECE_BYTES: Final = 4 * 1024**2
_PIECES: Final = (64 * 1024, 16 * 1024**2)  # the shortest and the longest, in bytes
_TIMES_FIXED: Final = 16  # bytes of a piece take this many times as long as its fixed time


@dataclass(frozen=True)
class Piece:
    """A part of a message, which is sent on its own.

    Attributes:
        peer: the other rank.
        first, last: elements, without `last`.
        after: sends of this step that must be done before the piece is added: they send from there.
    """

    peer: int
    first: int
    last: int
    is_added: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """What one rank does in a step of a schedule."""

    sends: list[Piece]
    receives: list[Piece]


@dataclass
class Count:
    """What one rank has sent so far.

    Attributes:
        messages: of schedules; each is sent in one or more pieces.
        sent_bytes: without headers.
    """

    messages: int = 0
    sent_bytes: int = 0


@dataclass
class Executor:
    """Adds up tensors over all ranks by schedules, with buffers that are used again.

    A message longer than a piece is sent in pieces, so that one piece is added up while the next
    is received. The order of additions is that of the schedule, whatever arrives first: results are
    deterministic, and equal to the bit on all ranks.

    All ranks have to call `sum_` in the same order, from one thread each.

    Attributes:
        transport: of this rank.
        piece_bytes: longest piece, the same on all ranks.
        count: messages and bytes that this rank has sent.
        store: that all ranks share, of torch.distributed, in which each writes what it was adding
            up when that fails; None: errors name no rank.
        num_calls: sums that have begun.
        signature: number, type and shape of the last one.
    """

    transport: Transport
    piece_bytes: int = _PIECE_BYTES
    store: Any = None
    count: Count = field(default_factory=Count)
    num_calls: int = 0
    signature: str = ""
    _programs: dict[tuple[Schedule, int, int], tuple[list[Step], int]] = field(default_factory=dict)
    _scratch: dict[tuple[torch.dtype, torch.device], list[Tensor]] = field(default_factory=dict)

    def use_pieces_for(self, link: Link) -> None:
        """Choose the length of pieces by the cost of messages, which is equal on all ranks.

        Short pieces cost fixed time, and long ones are added up after they have all been received.
        """
        wanted = _TIMES_FIXED * link.exchange_alpha_s / max(link.exchange_beta_s, 1e-15)
        low, high = _PIECES
        self.piece_bytes = 1 << round(math.log2(min(max(wanted, low), high)))
        self._programs.clear()
        self._scratch.clear()

    def sum_(self, tensor: Tensor, schedule: Schedule) -> Tensor:
        """Add up a tensor over all ranks, in place.

        Args:
            tensor: any shape and layout; equal shapes and types on all ranks.
            schedule: the same on all ranks, for as many ranks as there are.

        Returns:
            The same tensor.

        Raises:
            RuntimeError: if another rank has gone, or waits for another tensor until the time-out.
            ResourceError: the same with the rank that is to blame, if there is a store.
        """
        self.num_calls += 1
        shape = "×".join(str(num) for num in tensor.shape)
        self.signature = f"sum {self.num_calls}: {str(tensor.dtype)[6:]}[{shape}]"
        tag = zlib.crc32(f"{self.signature} {schedule.name}".encode()) & 0x7FFFFFFF
        flat = tensor.detach().contiguous().view(-1)
        program, num_messages = self._program(schedule, flat)
        try:
            for step in program:
                self._take(step, flat, tag)
        except RuntimeError as error:
            if self.store is None:
                raise
            raise blamed(
                self.store,
                rank=self.transport.rank,
                size=self.transport.size,
                signature=self.signature,
                cause=str(error),
            ) from error
        self.count.messages += num_messages
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))
        return tensor

    def _take(self, step: Step, flat: Tensor, tag: int) -> None:
        """Send and receive the pieces of one step."""
        sends: list[Work | None] = [
            self.transport.send(flat[piece.first : piece.last], piece.peer, tag)
            for piece in step.sends
        ]
        free = self._scratch.setdefault((flat.dtype, flat.device), [])
        in_flight: deque[tuple[Piece, Tensor, Work]] = deque()
        for piece in (*step.receives, *[None] * _MAX_IN_FLIGHT):
            if in_flight and (piece is None or len(in_flight) == _MAX_IN_FLIGHT):
                self._finish(flat, *in_flight.popleft(), sends=sends, free=free)
            if piece is not None:
                num = piece.last - piece.first
                buffer = _buffer(free, num, flat) if piece.is_added else flat[piece.first :]
                part = buffer[:num]
                work = self.transport.receive(part, piece.peer, tag)
                in_flight.append((piece, buffer, work))
        _wait(sends, range(len(sends)))
        self.count.sent_bytes += sum(one.last - one.first for one in step.sends) * flat.itemsize

    def _finish(
        self,
        flat: Tensor,
        piece: Piece,
        buffer: Tensor,
        work: Work,
        *,
        sends: list[Work | None],
        free: list[Tensor],
    ) -> None:
        """Wait for a piece, and add it up."""
        work.wait()
        if piece.is_added:
            _wait(sends, piece.after)
            flat[piece.first : piece.last].add_(buffer[: piece.last - piece.first])
            free.append(buffer)

    def _piece(self, itemsize: int) -> int:
        return max(1, self.piece_bytes // itemsize)

    def _program(self, schedule: Schedule, flat: Tensor) -> tuple[list[Step], int]:
        """Return what this rank does in each step, and how many messages it sends."""
        key = (schedule, flat.numel(), flat.itemsize)
        if key not in self._programs:
            self._programs[key] = program(
                schedule, self.transport.rank, flat.numel(), self._piece(flat.itemsize)
            )
        return self._programs[key]


def program(
    schedule: Schedule, rank: int, num_elements: int, max_piece: int
) -> tuple[list[Step], int]:
    """Return what a rank does in each step of a schedule, and how many messages it sends.

    Messages without elements are left out, on both sides.

    Args:
        max_piece: elements of the longest piece.
    """
    bounds = schedule.bounds(num_elements)
    steps: dict[int, Step] = {}
    num_messages = 0
    for message in schedule.of_rank(rank):
        first, last = bounds[message.first], bounds[message.last]
        if first == last:
            continue
        is_sent = message.source == rank
        num_messages += is_sent
        step = steps.setdefault(message.step, Step([], []))
        for start in range(first, last, max_piece):
            end = min(start + max_piece, last)
            if is_sent:
                step.sends.append(Piece(message.target, start, end))
            else:
                step.receives.append(Piece(message.source, start, end, message.is_added))
    return [_with_order(step) for step in steps.values()], num_messages


def _with_order(step: Step) -> Step:
    """Note for each piece that is added which sends it would overwrite."""
    receives = [
        replace(
            piece,
            after=tuple(
                number
                for number, send in enumerate(step.sends)
                if send.first < piece.last and piece.first < send.last
            ),
        )
        for piece in step.receives
    ]
    return Step(step.sends, receives)


def _buffer(free: list[Tensor], num: int, like: Tensor) -> Tensor:
    """Return a buffer for `num` elements: one that is free, or a new one instead of a shorter."""
    found = free.pop() if free else None
    return like.new_empty(num) if found is None or len(found) < num else found


def _wait(sends: list[Work | None], numbers: Iterable[int]) -> None:
    """Wait for some sends, each once: gloo would wait for ever for one that has been waited for."""
    for number in numbers:
        work = sends[number]
        if work is not None:
            work.wait()
            sends[number] = None

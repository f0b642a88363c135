"""A schedule of an all-reduce: which rank sends which part to which other rank, in which step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.int64]
_COLUMNS: Final = 6


class Message(NamedTuple):
    """One message.

    Attributes:
        step: number of its step; messages of one step are sent at the same time.
        source, target: ranks.
        first, last: the chunks that it contains, without `last`.
        is_added: the target adds it to what it has; otherwise it replaces that.
    """

    step: int
    source: int
    target: int
    first: int
    last: int
    is_added: bool


def add(source: ArrayLike, target: ArrayLike, first: ArrayLike, last: ArrayLike = -1) -> Numbers:
    """Return messages of one step whose targets add them to what they have; see `copy`."""
    return _rows(source, target, first, last, is_added=True)


def copy(source: ArrayLike, target: ArrayLike, first: ArrayLike, last: ArrayLike = -1) -> Numbers:
    """Return messages of one step that replace what their targets have.

    Args:
        source, target: ranks, shape (num_messages,) or one number.
        first, last: chunks from `first`, without `last`; -1: one chunk.

    Returns:
        Rows of source, target, first, last and 0; shape (num_messages, 5).
    """
    return _rows(source, target, first, last, is_added=False)


def _rows(
    source: ArrayLike, target: ArrayLike, first: ArrayLike, last: ArrayLike, *, is_added: bool
) -> Numbers:
    ends = np.where(np.equal(last, -1), np.add(first, 1), last)
    columns = np.broadcast_arrays(np.atleast_1d(source), target, first, ends, int(is_added))
    return np.stack(columns, axis=1).astype(np.int64)


@dataclass(frozen=True, eq=False)  # compared, and hashed, by identity
class Schedule:
    """An all-reduce as data: the messages of all ranks, by step.

    A tensor of n elements is divided into `num_chunks` chunks, of which chunk c ends where chunk
    c + 1 begins, at element (c + 1) n // num_chunks; some are empty if n is small. In each step a
    rank sends what it had before the step, and receives at the same time. At the end, every rank
    has the sum.

    Attributes:
        name: of the algorithm.
        num_ranks: p.
        num_chunks: parts into which a tensor is divided.
        steps: the messages of each step, in rows made by `add` and `copy`.
    """

    name: str
    num_ranks: int
    num_chunks: int
    steps: Sequence[Numbers] = field(repr=False)

    @property
    def num_steps(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    @cached_property
    def table(self) -> Numbers:
        """Return all messages in rows of step, source, target, first, last and is_added."""
        if not self.steps:
            return np.zeros((0, _COLUMNS), np.int64)
        numbers = np.repeat(np.arange(self.num_steps), [len(rows) for rows in self.steps])
        return np.concatenate([numbers[:, None], np.concatenate(self.steps)], axis=1)

    @property
    def messages(self) -> list[Message]:
        """Return all messages, by step."""
        return _messages(self.table)

    def of_rank(self, rank: int) -> list[Message]:
        """Return what a rank sends and receives, by step."""
        table = self.table
        own = table[(table[:, 1] == rank) | (table[:, 2] == rank)]
        return _messages(own)

    def bounds(self, num_elements: int) -> list[int]:
        """Return the elements at which the chunks begin, and the end of the last one."""
        return [chunk * num_elements // self.num_chunks for chunk in range(self.num_chunks + 1)]

    def num_elements_sent(self, num_elements: int) -> Numbers:
        """Return the number of elements of each message, in the order of `table`."""
        bounds = np.array(self.bounds(num_elements))
        result: Numbers = bounds[self.table[:, 4]] - bounds[self.table[:, 3]]
        return result


def _messages(table: Numbers) -> list[Message]:
    return [
        Message(step, source, target, first, last, bool(is_added))
        for step, source, target, first, last, is_added in table.tolist()
    ]


def contributions(schedule: Schedule) -> Numbers:
    """Carry out a schedule with counters instead of numbers.

    Returns:
        How often each rank's own value is in each chunk of each rank at the end, shape (num_ranks,
        num_chunks, num_ranks). All are 1 after an all-reduce.
    """
    num, num_chunks = schedule.num_ranks, schedule.num_chunks
    counts = np.zeros((num, num_chunks, num), np.int64)
    counts[np.arange(num), :, np.arange(num)] = 1
    for rows in schedule.steps:
        before = counts.copy()
        for source, target, first, last, is_added in rows.tolist():
            kept = counts[target, first:last] if is_added else 0
            counts[target, first:last] = kept + before[source, first:last]
    return counts


def aligned(parts: Iterable[Sequence[Numbers]], *, at_end: bool = False) -> list[Numbers]:
    """Return the steps of several parts that run at the same time, between different ranks.

    Args:
        at_end: all end in the same step; otherwise all begin in the same one.
    """
    lists = [list(part) for part in parts]
    num = max((len(part) for part in lists), default=0)
    nothing = np.zeros((0, _COLUMNS - 1), np.int64)
    padded = [
        [nothing] * (num - len(part)) + part if at_end else part + [nothing] * (num - len(part))
        for part in lists
    ]
    return [np.concatenate(rows) for rows in zip(*padded, strict=True)]

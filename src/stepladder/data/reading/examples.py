"""What a Reader can read: the face of stores, of data held in memory, and of a user's datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepladder.data.store.shard_files import ShardFilesStats


@dataclass(frozen=True)
class ReadCost:
    """What reading some rows took, in the thread that read them.

    Attributes:
        fetch_s: getting and checking bytes.
        decode_s: turning them into pixels.
        num_bytes: read.
    """

    fetch_s: float = 0.0
    decode_s: float = 0.0
    num_bytes: int = 0


class Examples(NamedTuple):
    """Some examples put together, without their ids."""

    inputs: Any
    targets: Any


class Source(ABC):
    """Examples by row.

    Attributes:
        fingerprint: identity of the data; other data must have another one.
        labels: class of each row, int64 (len,), or None where rows have no class.
        default_threads: threads that read when the user names no number; None: one a core; 0: the
            consumer's own thread reads, and nothing is read ahead, whatever the user names.
        rows_per_task: rows that one thread reads in one go.
        block_rows: sizes of blocks of rows that are cheap to read together, in the order of rows,
            such as the files of a store; None: there are none.
        max_window_rows: rows of a window that can be held at hand, where there is such a limit.
        has_mixed_blocks: whether each block is a random sample of the rows.
        is_near: whether a row alone costs little more than its bytes, as in memory or on a local
            disk; False: it costs a request, or a disk arm's move.
        warning: what the user must be told of this source before it is used; None: nothing.
    """

    fingerprint: str
    labels: np.ndarray | None = None
    default_threads: int | None = None
    rows_per_task: int = 32
    block_rows: tuple[int, ...] | None = None
    max_window_rows: int | None = None
    has_mixed_blocks: bool = False
    is_near: bool = True
    warning: str | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def read(self, rows: np.ndarray) -> Examples:
        """Put rows together, in the order given.

        Called from several threads, unless default_threads is 0 or 1.
        """

    def expect(self, rows: np.ndarray) -> None:  # noqa: B027 (most sources have nothing to fetch)
        """Be told which rows are read next, in this order, so as to fetch them ahead.

        What was told before and is not told again will not be read for long.
        """

    def files_stats(self) -> ShardFilesStats | None:
        """Say what it took so far to fetch the files of rows; None: nothing has to be fetched."""
        return None

    def describe(self, row: int) -> str:
        """Name a row for people."""
        return f"row {row}"


class PictureSource(Source):
    """Pictures of one shape, which are read straight into a batch.

    Attributes:
        picture_shape: (h, w, c) in memory.
        labels: class of each row, int64 (len,).
    """

    picture_shape: tuple[int, int, int]
    labels: np.ndarray

    def labels_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of some rows, int64 (len(rows),)."""
        labels: np.ndarray = self.labels[rows]
        return labels

    @abstractmethod
    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Fill `out`, uint8 (len(rows), h, w, c), C-contiguous, with the pictures of these rows."""

    def read(self, rows: np.ndarray) -> Examples:
        """Put rows together: uint8 (n, h, w, c) and int64 (n,)."""
        out = np.empty((len(rows), *self.picture_shape), dtype=np.uint8)
        self.read_into(rows, out)
        return Examples(out, self.labels_of(rows))


class ArrivalSource(Source):
    """Examples that come in an order of their own, such as an IterableDataset gives."""

    @abstractmethod
    def arrivals(self) -> Iterator[Any]:
        """Begin again and yield single examples."""

    @abstractmethod
    def collate(self, items: list[Any]) -> Examples:
        """Put examples together."""

    def read(self, rows: np.ndarray) -> Examples:  # noqa: ARG002
        """Refuse: there is no way to a row."""
        raise TypeError(f"{type(self).__name__} cannot be read by row")


def none_of(examples: Examples) -> Examples:
    """Keep the form and drop every example: the part of a rank that gets none of a batch."""
    return Examples(_none_of(examples.inputs), _none_of(examples.targets))


def _none_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _none_of(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_none_of(item) for item in value))
    if isinstance(value, tuple):
        return tuple(_none_of(item) for item in value)
    if isinstance(value, list) and value and not isinstance(value[0], (str, bytes)):
        return [_none_of(item) for item in value]
    return value[:0] if hasattr(value, "__getitem__") else value

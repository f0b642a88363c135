"""What a Reader can read: the face of stores, of data held in memory, and of a user's datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


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
        warning: what the user must be told of this source before it is used; None: nothing.
    """

    fingerprint: str
    labels: np.ndarray | None = None
    default_threads: int | None = None
    rows_per_task: int = 32
    warning: str | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Count the rows."""

    @abstractmethod
    def read(self, rows: np.ndarray) -> Examples:
        """Put rows together, in the order given.

        Called from several threads, unless default_threads is 0 or 1.
        """

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

    @abstractmethod
    def read_into(self, rows: np.ndarray, out: np.ndarray) -> ReadCost:
        """Fill `out`, uint8 (len(rows), h, w, c), C-contiguous, with the pictures of these rows."""

    def read(self, rows: np.ndarray) -> Examples:
        """Put rows together: uint8 (n, h, w, c) and int64 (n,)."""
        out = np.empty((len(rows), *self.picture_shape), dtype=np.uint8)
        self.read_into(rows, out)
        return Examples(out, self.labels[rows])


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
    if isinstance(value, list) and value and not isinstance(value[0], str):
        return [_none_of(item) for item in value]
    return value[:0] if hasattr(value, "__getitem__") else value

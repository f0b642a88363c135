"""Sources for a Reader: the interface of stores, in-memory data and user datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from stepladder.data.store.shard_files import ShardFilesStats


@dataclass(frozen=True)
class ReadCost:
    """Cost of reading some rows, in the thread that read them.

    Attributes:
        fetch_s: seconds to get and check bytes.
        decode_s: seconds to decode them to pixels.
        num_bytes: bytes read.
    """

    fetch_s: float = 0.0
    decode_s: float = 0.0
    num_bytes: int = 0


class Examples(NamedTuple):
    """Collated examples, without their ids."""

    inputs: Any
    targets: Any


class Source(ABC):
    """Examples by row.

    Attributes:
        fingerprint: identity of the data; different data must have a different one.
        labels: class of each row, int64 (len,), or None if rows have no class.
        default_threads: number of reading threads unless the user sets one; None: one per core; 0:
            the consumer's thread reads without prefetching, whatever the user sets.
        rows_per_task: rows that one thread reads per task.
        block_rows: sizes of blocks of rows that are cheap to read together, in the order of rows,
            such as the files of a store; None if the data has no blocks.
        max_window_rows: maximum rows of a shuffle window, if there is a limit.
        has_mixed_blocks: whether each block is a random sample of the rows.
        is_near: whether random access to a row is cheap, as in memory or on an SSD; False if it
            costs a network request or a disk seek.
        warning: a warning to show before this source is used, or None.
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
        """Read and collate rows, in the given order.

        Called from several threads, unless default_threads is 0 or 1.
        """

    def expect(self, rows: np.ndarray) -> None:  # noqa: B027 (most sources do not prefetch)
        """Prefetch the rows that will be read next, in this order.

        Rows of earlier calls that are not repeated will not be read soon.
        """

    def files_stats(self) -> ShardFilesStats | None:
        """Return statistics of fetching files so far; None if files are local."""
        return None

    def describe(self, row: int) -> str:
        """Return a readable name of a row."""
        return f"row {row}"


class PictureSource(Source):
    """Pictures of one shape, which are read directly into a batch.

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
        """Read rows: uint8 (n, h, w, c) and int64 (n,)."""
        out = np.empty((len(rows), *self.picture_shape), dtype=np.uint8)
        self.read_into(rows, out)
        return Examples(out, self.labels_of(rows))


class RowsOnly(Source):
    """The rows of another source, without its examples, for a process that does not use these."""

    default_threads = 0

    def __init__(self, source: Source) -> None:
        self._source = source
        self.fingerprint, self.labels = source.fingerprint, source.labels
        self.block_rows, self.max_window_rows = source.block_rows, source.max_window_rows
        self.has_mixed_blocks, self.is_near = source.has_mixed_blocks, source.is_near

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: np.ndarray) -> Examples:
        """Return an array without columns, (len(rows), 0), and no targets."""
        return Examples(torch.zeros((len(rows), 0)), None)

    def describe(self, row: int) -> str:
        """Return a readable name of a row."""
        return self._source.describe(row)


class ArrivalSource(Source):
    """Examples in a fixed stream order, such as those of an IterableDataset."""

    @abstractmethod
    def arrivals(self) -> Iterator[Any]:
        """Iterate over single examples from the start."""

    @abstractmethod
    def collate(self, items: list[Any]) -> Examples:
        """Collate examples."""

    def read(self, rows: np.ndarray) -> Examples:  # noqa: ARG002
        """Raise TypeError: there is no random access."""
        raise TypeError(f"{type(self).__name__} cannot be read by row")


def none_of(examples: Examples) -> Examples:
    """Return examples of the same structure with zero rows, for a rank with an empty part."""
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

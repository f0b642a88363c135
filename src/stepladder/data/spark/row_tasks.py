"""Spark tasks for pictures that arrive as rows: send them to writers, write files."""

from __future__ import annotations

import bisect
import hashlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.prepare.plan import Row
from stepladder.data.sources.pictures import CHANGED
from stepladder.data.spark.shard_tasks import (
    TO_MAKE,
    decoding,
    make_shard,
    read_shard_plan,
    task_file,
)
from stepladder.data.spark.site import Site, telling

if TYPE_CHECKING:
    import pyarrow as pa

    Batches = Iterator[pa.RecordBatch]
else:
    Batches = Any

ROUTED = "shard int, sha256 binary, picture binary"
MADE = "shard int"
ROUTING = "routing"
END_OF_FILE = b"\xff" * 33  # end marker in place of a sha256; sorts after every sha256
_MAX_SENT_BYTES = 32 << 20

_HASH_BYTES = 32
_ENTRY_BYTES = _HASH_BYTES + 4


def write_routing(path: Path, entries: Iterable[tuple[bytes, int]]) -> None:
    """Write (sha256, file number) of each picture to write."""
    lines = sorted({sha256 + number.to_bytes(4) for sha256, number in entries})
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(path)


class Routing(Sequence[bytes]):
    """The file of `write_routing` as a sorted sequence of hashes."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = path.stat().st_size
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        self._num = size // _ENTRY_BYTES

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, at: int) -> bytes:  # type: ignore[override]
        return self._data[at * _ENTRY_BYTES : at * _ENTRY_BYTES + _HASH_BYTES]

    def files_of(self, sha256: bytes) -> list[int]:
        """Return the numbers of the files that need a picture; none if they are finished."""
        numbers = []
        at = bisect.bisect_left(self, sha256)
        while at < self._num and self[at] == sha256:
            start = at * _ENTRY_BYTES + _HASH_BYTES
            numbers.append(int.from_bytes(self._data[start : start + 4]))
            at += 1
        return numbers


class CutInputError(Exception):
    """The input of a task is truncated. The task fails, so that Spark retries it."""


@dataclass(frozen=True, kw_only=True)
class RowTasks(ABC):
    """Tasks that send pictures to the writers.

    Attributes:
        site: the shared folder.
        config: options of prepare.
    """

    site: Site
    config: PrepareConfig

    @abstractmethod
    def pictures(self, batches: Batches) -> Iterator[bytes]:
        """Yield the usable pictures of the source's rows."""

    def route(self, batches: Batches) -> Batches:
        """Yield each picture that is still needed, with the number of its file."""
        with telling(self.site):
            yield from self._route(self.pictures(handed(batches)))

    def _route(self, pictures: Iterator[bytes]) -> Batches:
        routing = Routing(self.site.root / ROUTING)
        sent = _Sent()
        for data in pictures:
            digest = hashlib.sha256(data).digest()
            for number in routing.files_of(digest):
                sent.add(number, digest, data)
            if sent.num_bytes > _MAX_SENT_BYTES:
                yield sent.take()
        yield sent.take()


@dataclass(frozen=True, kw_only=True)
class FileTasks:
    """Tasks that write files.

    Attributes:
        site: the shared folder.
        config: options of prepare.
    """

    site: Site
    config: PrepareConfig

    def make(self, batches: Batches) -> Batches:
        """Write files from pictures sorted by (file, sha256), with an end marker for each file."""
        with telling(self.site):
            yield from self._make(handed(batches))

    def _make(self, batches: Batches) -> Batches:
        import pyarrow as pa

        rows = _Rows(batches)
        with decoding(1) as workers:
            while (number := rows.next_file()) is not None:
                plan = read_shard_plan(task_file(self.site, TO_MAKE, number))
                make_shard(
                    self.site,
                    self.config,
                    plan,
                    read=partial(rows.read, number),
                    workers=workers,
                    on_made=partial(rows.require_end, number),
                )
                yield pa.RecordBatch.from_pydict({"shard": pa.array([number], pa.int32())})


class _Sent:
    """A buffer of rows to send as one batch."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, bytes, bytes]] = []
        self.num_bytes = 0

    def add(self, number: int, sha256: bytes, data: bytes) -> None:
        self._rows.append((number, sha256, data))
        self.num_bytes += len(data)

    def take(self) -> pa.RecordBatch:
        import pyarrow as pa

        columns = list(zip(*self._rows, strict=True)) or [(), (), ()]
        kinds = (pa.int32(), pa.binary(), pa.binary())
        arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)]
        self._rows, self.num_bytes = [], 0
        return pa.RecordBatch.from_arrays(arrays, ["shard", "sha256", "picture"])


class _Rows:
    """Rows sorted by (file, sha256), read one at a time in the order of the files' rows."""

    def __init__(self, batches: Batches) -> None:
        self._rows = self._flat(batches)
        self._next = next(self._rows, None)
        self._done: set[int] = set()

    def next_file(self) -> int | None:
        """Return the number of the next file; skips unread rows of the previous file."""
        while self._next is not None and self._next[0] in self._done:
            self._next = next(self._rows, None)
        if self._next is None:
            return None
        self._done.add(self._next[0])
        return self._next[0]

    def read(self, number: int, row: Row) -> bytes:
        """Return the picture of a row; call it in order. A picture may be read twice."""
        _, sha256, data = self._go_to(number, row.sha256)
        if sha256 != row.sha256:
            raise BadPictureError(CHANGED)
        return data

    def require_end(self, number: int) -> None:
        """Check that the end marker of a file arrived, so that no rows are missing.

        Raises:
            CutInputError: if it did not.
        """
        self._go_to(number, END_OF_FILE)

    def _go_to(self, number: int, sha256: bytes) -> tuple[int, bytes, bytes]:
        """Skip the rows of a file before a hash, and return the next row."""
        while self._next is not None and self._next[0] == number and self._next[1] < sha256:
            self._next = next(self._rows, None)
        if self._next is None or self._next[0] != number:
            raise CutInputError(f"the rows of file {number} are truncated")
        return self._next

    @staticmethod
    def _flat(batches: Batches) -> Iterator[tuple[int, bytes, bytes]]:
        for batch in batches:
            for at in range(batch.num_rows):
                number, sha256, data = (column[at].as_py() for column in batch.columns)
                yield number, bytes(sha256), data


def handed(batches: Batches) -> Batches:
    """Yield batches from Spark; a truncated stream raises CutInputError instead of OSError."""
    try:
        yield from batches
    except OSError as error:  # raised by pyarrow if the stream ends within a batch
        raise CutInputError(str(error)) from error

"""Keep pictures on disk between the two passes of prepare, in buckets by their sha256.

Containers are read in file order, and a store is written in the order of hashes. The first pass
spools the pictures, so that the second finds the pictures of one shard close together. The spool
also has a record of each container that was read completely; an interrupted prepare resumes after
the last one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.data.reading.threads import map_in_order
from stepladder.data.sources.containers.contract import Item
from stepladder.data.sources.walk import Skipped
from stepladder.errors import ResourceError

_LARGE_BYTES = 16 << 30
_CHECKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Spooled:
    """A hashed picture.

    Attributes:
        item: the picture without its bytes.
        sha256: hash of the bytes; empty if the item has a reason.
        size_bytes: number of bytes.
        bucket, offset: position in the spool, if there is one.
    """

    item: Item
    sha256: bytes
    size_bytes: int
    bucket: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Kept:
    """The rows of one container, and what was skipped."""

    rows: list[Spooled]
    skipped: Skipped


@dataclass(frozen=True)
class ContainerRecords:
    """A folder with a record of each container that was read completely.

    Attributes:
        folder: the folder.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path, *, key: str) -> ContainerRecords:
        """Open a folder, or create it.

        Args:
            folder: the folder.
            key: hash of how containers are read. Records with another key are removed.
        """
        stamp = folder / "key"
        if not stamp.is_file() or stamp.read_text() != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stamp.write_text(key)
        return cls(folder)

    def write(self, key: str, kept: Kept) -> None:
        """Record all rows of a container atomically; safe to call concurrently."""
        record = self.path(key)
        temporary = record.with_name(f"{record.name}.{uuid.uuid4().hex}.tmp")
        with temporary.open("w", encoding="utf-8", errors="surrogatepass") as file:
            head = {"container": key, "num_rows": len(kept.rows)}
            file.write(json.dumps({**head, "skipped": asdict(kept.skipped)}) + "\n")
            file.writelines(json.dumps(_to_json(row)) + "\n" for row in kept.rows)
        temporary.replace(record)

    def read(self, key: str) -> Kept | None:
        """Return the record of a container; None if it is missing or incomplete."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with self.path(key).open(encoding="utf-8", errors="surrogatepass") as file:
                head = json.loads(next(file, ""))
                rows = [_from_json(json.loads(line)) for line in file]
            if head["container"] == key and head["num_rows"] == len(rows):
                return Kept(rows, Skipped(**head["skipped"]))
        return None

    def num_rows(self, key: str) -> int | None:
        """Return the number of rows in the record of a container; None if there is no record."""
        try:
            with self.path(key).open(encoding="utf-8", errors="surrogatepass") as file:
                return int(json.loads(next(file, ""))["num_rows"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget_all_but(self, keys: Iterable[str]) -> None:
        """Remove the records of other containers."""
        wanted = {self.path(key) for key in keys}
        for record in self.folder.glob("*.jsonl*"):
            if record not in wanted:
                record.unlink()

    def path(self, key: str) -> Path:
        """Return the path of a container's record."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.jsonl"


def without_data(item: Item) -> Item:
    """Return a picture without its bytes."""
    return Item(item.row, b"", item.label, item.split, item.path, item.group, item.reason)


def _to_json(row: Spooled) -> list[Any]:
    item = row.item
    facts = [item.row, item.label, item.split, item.path, item.group, item.reason]
    return [*facts, row.sha256.hex(), row.size_bytes, row.bucket, row.offset]


def _from_json(value: list[Any]) -> Spooled:
    row, label, split, path, group, reason, sha256, size_bytes, bucket, offset = value
    named = None if split is None else Split(split)
    item = Item(row, b"", label, named, path, group, reason)
    return Spooled(item, bytes.fromhex(sha256), size_bytes, bucket, offset)


class Buckets:
    """The open files of a spool; unpickling opens them again in another process.

    Args:
        folder: folder of the files; missing files are created.
        num_digits: number of hexadecimal digits of a sha256 that select the file.

    Raises:
        ResourceError: if too many files are open.
    """

    def __init__(self, folder: Path, num_digits: int) -> None:
        self._folder, self._num_digits = folder, num_digits
        names = [folder / f"{bucket:0{num_digits}x}" for bucket in range(16**num_digits)]
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._handles: list[int] = []
        try:
            self._handles += (os.open(name, flags, 0o644) for name in names)
        except OSError as error:
            self.close()
            raise ResourceError(
                f"{len(names)} temporary files cannot be open at the same time ({error.strerror})",
                where=str(folder),
                fix="In this shell, raise the limit on open files, then run the same command "
                "again: ulimit -n 1024",
            ) from None

    def __reduce__(self) -> tuple[type[Buckets], tuple[Path, int]]:
        return Buckets, (self._folder, self._num_digits)

    def close(self) -> None:
        """Close the files."""
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def read(self, bucket: int, offset: int, size_bytes: int) -> bytes:
        """Read bytes; thread-safe. Returns fewer at the end of a file."""
        return os.pread(self._handles[bucket], size_bytes, offset)

    def write(self, bucket: int, data: bytes, offset: int) -> None:
        """Write bytes."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._handles[bucket], view, offset)
            view, offset = view[written:], offset + written

    def cut(self, ends: Sequence[int]) -> None:
        """Truncate each file to a size."""
        for handle, end in zip(self._handles, ends, strict=True):
            os.ftruncate(handle, end)


class Spool:
    """Files of picture bytes in a folder, and records of complete containers.

    Args:
        folder: folder of the spool; created if it is missing.
        key: hash of how containers are read. Records with another key are removed.
        num_bytes: approximate size of all pictures. It sets the number of buckets: a bucket should
            fit in memory, so that reading it in the order of hashes needs no seeks.
    """

    def __init__(self, folder: Path, *, key: str, num_bytes: int) -> None:
        num_digits = 1 if num_bytes < _LARGE_BYTES else 2
        self._num_digits = num_digits
        self._records = ContainerRecords.open(folder, key=f"{key} {num_digits}")
        self.buckets = Buckets(folder, num_digits)
        self._ends = [0] * 16**num_digits

    def close(self) -> None:
        """Close the files without removing them."""
        self.buckets.close()

    def take_over(self, keys: Sequence[str], pool: Executor, *, ahead: int) -> dict[str, Kept]:
        """Return what an earlier run spooled for these containers, after checking every hash.

        Records of other containers and damaged ones are removed.
        """
        found = {}
        for key in keys:
            kept = self._records.read(key)
            if kept is not None and self._is_whole(kept.rows, pool, ahead):
                found[key] = kept
        self._records.forget_all_but(found)
        for kept in found.values():
            for row in kept.rows:
                end = row.offset + row.size_bytes
                self._ends[row.bucket] = max(self._ends[row.bucket], end)
        self.buckets.cut(self._ends)
        return found

    def add(self, item: Item, sha256: bytes) -> Spooled:
        """Append a picture's bytes."""
        if item.reason is not None:
            return Spooled(item, b"", 0, 0, 0)
        bucket = int(sha256.hex()[: self._num_digits], 16)
        offset = self._ends[bucket]
        self.buckets.write(bucket, item.data, offset)
        self._ends[bucket] += len(item.data)
        return Spooled(without_data(item), sha256, len(item.data), bucket, offset)

    def finish(self, key: str, kept: Kept) -> None:
        """Record that all rows of a container are spooled."""
        self._records.write(key, kept)

    def _is_whole(self, rows: Sequence[Spooled], pool: Executor, ahead: int) -> bool:
        chunks: Iterator[Sequence[Spooled]] = (
            rows[at : at + _CHECKED_AT_ONCE] for at in range(0, len(rows), _CHECKED_AT_ONCE)
        )
        return all(map_in_order(pool, self._are_whole, chunks, ahead=ahead))

    def _are_whole(self, rows: Sequence[Spooled]) -> bool:
        return all(
            row.item.reason is not None
            or hashlib.sha256(self.buckets.read(row.bucket, row.offset, row.size_bytes)).digest()
            == row.sha256
            for row in rows
        )

"""One open shard: a row straight from the page cache into a buffer, checked on first touch."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import weakref
import zlib
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from stepladder.config.choices import VerifyPages
from stepladder.data.index import Index, index_path, open_index, rebuild_index
from stepladder.data.manifest import PREPARE_AGAIN
from stepladder.data.pages import (
    SHA256_BYTES,
    Footer,
    LayoutError,
    page_data,
    pages,
    read_footer,
    split_strings,
)
from stepladder.errors import DataError, ResourceError
from stepladder.records import ShardInfo, write_bytes


class _Names(NamedTuple):
    """The small columns of one row group."""

    group_idx: int
    hashes: bytes
    paths: list[str]


class Shard:
    """A shard that is held open, so that a store replaced under us stays readable as it was.

    Safe to use from several threads.

    Args:
        path: the Parquet file.
        info: what the manifest says of it.
        verify: when the CRC of a picture is checked.

    Raises:
        DataError: if the file is missing, cut, or not the one that the manifest names.
        ResourceError: if too many files are open.
    """

    def __init__(self, path: Path, info: ShardInfo, *, verify: VerifyPages) -> None:
        self.path = path
        self.info = info
        self._verify = verify
        self._file = _open(path)
        self._close = weakref.finalize(self, os.close, self._file)
        self._identity = self._stat()
        self._forget()
        self._index = open_index(index_path(path), info) or self._rebuild()
        self._names: _Names | None = None

    def close(self) -> None:
        """Close the file."""
        self._close()

    def check(self) -> None:
        """Find out whether the file is still the one that was opened; call before some reads.

        Pages read before are trusted only while size, time of change and inode hold.

        Raises:
            DataError: if the file or its index was cut or has grown.
        """
        if not self._index.check():
            raise self._changed(index_path(self.path))
        identity = self._stat()
        if identity != self._identity:
            self._forget()
            self._identity = identity

    def read_into(self, row: int, out: memoryview) -> None:
        """Fill a buffer of exactly the picture's size with the pixels of a row.

        Raises:
            DataError: if the row cannot be read, or its bytes are not those that were written.
        """
        verified = self._verified  # before the read: a change after it must not be marked as seen
        index = self._index
        try:
            num_read = os.preadv(self._file, [out], index.offsets[row])
        except OSError as error:
            raise self._unreadable(row, error) from None
        if num_read != index.lengths[row] or num_read != len(out):
            raise self._changed(self.path)
        if not verified[row >> 3] >> (row & 7) & 1:
            self._check_page(row, out, verified)

    def read(self, row: int) -> bytes:
        """Read the bytes of a row's picture file.

        Raises:
            DataError: as `read_into`.
        """
        verified = self._verified
        num_bytes = self._index.lengths[row]
        try:
            data = os.pread(self._file, num_bytes, self._index.offsets[row])
        except OSError as error:
            raise self._unreadable(row, error) from None
        if len(data) != num_bytes:
            raise self._changed(self.path)
        if not verified[row >> 3] >> (row & 7) & 1:
            self._check_page(row, data, verified)
        return data[4:]  # PLAIN BYTE_ARRAY: a length stands in front

    def source_path(self, row: int) -> str:
        """Give the path of the source file, relative, as it is stored.

        Raises:
            LayoutError: if the column is damaged.
        """
        names, row_in_group = self._names_of(row)
        return names.paths[row_in_group]

    def sha256(self, row: int) -> bytes:
        """Give the sha256 of the source file's bytes.

        Raises:
            LayoutError: if the column is damaged.
        """
        names, row_in_group = self._names_of(row)
        start = row_in_group * SHA256_BYTES
        return names.hashes[start : start + SHA256_BYTES]

    def describe(self, row: int) -> str:
        """Name a row for an error: file, row, and source path where it can be read."""
        with contextlib.suppress(LayoutError, OSError):
            return f"{self.path}: row {row} ({self.source_path(row)})"
        return f"{self.path}: row {row}"

    @property
    def index(self) -> Index:
        """Where each row is."""
        return self._index

    def _check_page(self, row: int, data: memoryview | bytes, verified: bytearray) -> None:
        if zlib.crc32(data) != self._index.crcs[row]:
            raise DataError(
                "the picture fails its checksum (CRC)",
                where=self.describe(row),
                why="The bytes on disk are not those that prepare wrote.",
                fix=f"List all damage: stepladder verify {self.path.parent}. {PREPARE_AGAIN}",
            )
        if self._verify is VerifyPages.FIRST_TOUCH:
            # Two threads may lose one of two bits set at once: that row is only checked again.
            verified[row >> 3] |= 1 << (row & 7)

    def _forget(self) -> None:
        is_trusted = self._verify is VerifyPages.NEVER
        fill = b"\xff" if is_trusted else b"\0"
        self._verified = bytearray(fill * (self.info.num_rows + 7 >> 3))

    def _stat(self) -> tuple[int, int, int]:
        stat = os.fstat(self._file)
        if stat.st_size != self.info.size_bytes:
            raise self._changed(self.path, num_bytes=stat.st_size)
        return stat.st_size, stat.st_mtime_ns, stat.st_ino

    def _rebuild(self) -> Index:
        try:
            data = rebuild_index(self._file, self.info)
        except LayoutError as error:
            raise DataError(str(error), where=str(self.path), fix=PREPARE_AGAIN) from None
        with contextlib.suppress(OSError):  # a folder that cannot be written to is no error
            write_bytes(index_path(self.path), data)
        return Index(data, self.info.num_rows)

    @cached_property
    def _footer(self) -> Footer:
        return read_footer(self._file)

    @cached_property
    def _group_ends(self) -> list[int]:
        return list(accumulate(group.num_rows for group in self._footer.row_groups))

    def _names_of(self, row: int) -> tuple[_Names, int]:
        group_idx = bisect_right(self._group_ends, row)
        names = self._names
        if names is None or names.group_idx != group_idx:
            names = self._names = self._read_names(group_idx)
        start = self._group_ends[group_idx - 1] if group_idx else 0
        return names, row - start

    def _read_names(self, group_idx: int) -> _Names:
        hash_chunk, path_chunk, _, _ = self._footer.row_groups[group_idx].chunks
        hashes = b"".join(page_data(self._file, page) for page in pages(self._file, hash_chunk))
        texts = b"".join(page_data(self._file, page) for page in pages(self._file, path_chunk))
        return _Names(group_idx, hashes, [text.decode() for text in split_strings(texts)])

    def _changed(self, path: Path, *, num_bytes: int | None = None) -> DataError:
        found = "" if num_bytes is None else f": {num_bytes} bytes, not {self.info.size_bytes}"
        return DataError(
            f"the file was cut or replaced{found}",
            where=str(path),
            why="The manifest names another size, so no row of it can be trusted.",
            fix=PREPARE_AGAIN,
        )

    def _unreadable(self, row: int, error: OSError) -> DataError:
        return DataError(
            f"the picture cannot be read ({error.strerror})",
            where=self.describe(row),
            fix="Look at the disk, then: stepladder verify " + str(self.path.parent),
        )


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DataError("the shard is missing", where=str(path), fix=PREPARE_AGAIN) from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise ResourceError(
                "too many open files",
                where=str(path),
                why="Each shard of a store is held open.",
                fix="Allow more: ulimit -n 65536",
            ) from None
        raise ResourceError(
            f"it cannot be opened ({error.strerror})",
            where=str(path),
            fix=f"Look at its permissions and at the disk: ls -l {shlex.quote(str(path))}",
        ) from None

"""An open shard: reads rows directly into a buffer and checks them on first use."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shlex
import threading
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from stepladder.config.choices import Compression, VerifyPages
from stepladder.data.decoding.decode import Form
from stepladder.data.store.index import Index, index_path, open_index, rebuild_index
from stepladder.data.store.manifest import MANIFEST_NAME, PREPARE_AGAIN, mend
from stepladder.data.store.pages import (
    SHA256_BYTES,
    Footer,
    LayoutError,
    PackedError,
    page_data,
    pages,
    read_footer,
    split_strings,
    unpack_into,
)
from stepladder.errors import DataError, ResourceError
from stepladder.records import ShardInfo, write_bytes

_LENGTH_BYTES = 4  # PLAIN BYTE_ARRAY: starts with a length

_MAX_FORMS = 1 << 16


class Forms:
    """Cache of the forms of rows. Thread-safe.

    Reading a header again takes a tenth of the time of decoding a picture of 299 pixels, and holds
    the GIL.
    """

    def __init__(self, num_rows: int) -> None:
        self._numbers = np.zeros(num_rows, dtype=np.uint16)
        self._forms: list[Form | None] = [None]
        self._number_of: dict[Form, int] = {}
        self._lock = threading.Lock()

    def get(self, row: int) -> Form | None:
        """Return the form of a row, or None if it is not known."""
        number: int = self._numbers[row]
        return self._forms[number]

    def add(self, row: int, form: Form) -> Form:
        """Store the form of a row and return it."""
        with self._lock:
            number = self._number_of.get(form, len(self._forms))
            if number == _MAX_FORMS:
                return form
            if number == len(self._forms):
                self._forms.append(form)
                self._number_of[form] = number
        self._numbers[row] = number
        return form


class _Names(NamedTuple):
    """The small columns of one row group."""

    group_idx: int
    hashes: bytes
    paths: list[str]


class Shard:
    """A shard that is kept open, so that it stays readable if the store is replaced.

    Thread-safe.

    Args:
        path: the Parquet file.
        info: its entry in the manifest.
        verify: when the CRC of a picture is checked.
        compression: compression of the pages of pictures.
        is_mapped: copy rows that were read before from a memory mapping of the file, which is
            faster than reading them while the file is in the page cache.
        is_far: whether the file is on a network, so that its index is read and not mapped.

    Attributes:
        index: the position of each row.
        num_changes: how often the file was found to have changed.
        forms: forms of its pictures, if they are JPEG files.

    Raises:
        DataError: if the file is missing, truncated, or does not match the manifest.
        ResourceError: if too many files are open.
    """

    def __init__(
        self,
        path: Path,
        info: ShardInfo,
        *,
        verify: VerifyPages,
        compression: Compression = Compression.NONE,
        is_mapped: bool = False,
        is_far: bool = False,
    ) -> None:
        self.path = path
        self.info = info
        self._verify = verify
        self._compression = compression
        self._is_mapped = is_mapped and compression is Compression.NONE
        self._file = _open(path)
        self._close = weakref.finalize(self, os.close, self._file)
        self._identity = self._stat()
        self.num_changes = 0
        self._forget()
        index = open_index(index_path(path), info, is_mapped=not is_far)
        self.index: Index = index or self._rebuild()
        self._names: _Names | None = None

    def close(self) -> None:
        """Close the file."""
        self._close()

    def check(self) -> None:
        """Check that the file has not changed size; call before each group of reads.

        Pages read before are trusted only while size, mtime and inode are unchanged.

        Raises:
            DataError: if the size of the file or its index has changed.
        """
        if not self.index.check():
            raise self._changed(index_path(self.path))
        self.is_unchanged()

    def is_unchanged(self) -> bool:
        """Return True if the file has not changed since the last call; else reset checked rows.

        Raises:
            DataError: if the size of the file has changed.
        """
        identity = self._stat()
        if identity == self._identity:
            return True
        self._forget()
        self.num_changes += 1
        self._identity = identity
        return False

    def read_into(self, rows: np.ndarray, out: np.ndarray, places: Sequence[int]) -> int:
        """Fill rows of a buffer with the pixels of rows of this shard; call `check` before.

        Args:
            rows: int64 (k,).
            out: uint8 (n, bytes of a picture), C-contiguous.
            places: k rows of `out`.

        Returns:
            Bytes read.

        Raises:
            DataError: if a row cannot be read, or its checksum does not match.
        """
        verified = self._verified  # taken before the read: a later change must not be marked
        num_bytes = out.shape[1]
        lengths = self.index.lengths[rows]
        is_packed = self._compression is not Compression.NONE
        if not is_packed and not (lengths == num_bytes).all():
            raise self._changed(self.path)
        mapped = self.mapping if self._is_mapped and verified[rows].all() else None
        if mapped is not None:
            offsets = self.index.offsets[rows].tolist()
            for place, offset in zip(places, offsets, strict=True):
                out[place] = mapped[offset : offset + num_bytes]
        else:
            read = self._unpack_row if is_packed else self._read_row
            for row, place in zip(rows.tolist(), places, strict=True):
                read(row, out[place].data, verified)
        return int(lengths.sum())

    def read(self, row: int) -> bytes:
        """Read the bytes of a row's picture file; call `check` before.

        Raises:
            DataError: see `read_into`.
        """
        verified = self._verified
        mapped = self.mapping if self._is_mapped and verified[row] else None
        if mapped is None:
            return self._page(row, verified)[_LENGTH_BYTES:]
        start = int(self.index.offsets[row])
        return mapped[start + _LENGTH_BYTES : start + int(self.index.lengths[row])].tobytes()

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the labels of some rows, int64 (k,)."""
        labels: np.ndarray = self.index.labels[rows].astype(np.int64)
        return labels

    def source_path(self, row: int) -> str:
        """Return the stored relative path of the source file.

        Raises:
            LayoutError: if the column is damaged.
        """
        names, row_in_group = self._names_of(row)
        return names.paths[row_in_group]

    def sha256(self, row: int) -> bytes:
        """Return the sha256 of the source file.

        Raises:
            LayoutError: if the column is damaged.
        """
        names, row_in_group = self._names_of(row)
        start = row_in_group * SHA256_BYTES
        return names.hashes[start : start + SHA256_BYTES]

    def describe(self, row: int) -> str:
        """Describe a row for an error: file, row, and source path if it can be read."""
        with contextlib.suppress(LayoutError, OSError):
            return f"{self.path}: row {row} ({self.source_path(row)})"
        return f"{self.path}: row {row}"

    def _read_row(self, row: int, out: memoryview, verified: np.ndarray) -> None:
        try:
            num_read = os.preadv(self._file, [out], int(self.index.offsets[row]))
        except OSError as error:
            raise self._unreadable(row, error) from None
        if num_read != len(out):
            raise self._changed(self.path)
        self._check_page(row, out, verified)

    def _unpack_row(self, row: int, out: memoryview, verified: np.ndarray) -> None:
        packed = self._page(row, verified)
        try:
            unpack_into(packed, out, self._compression)
        except PackedError as error:
            raise DataError(
                f"this file of the store is damaged: {error}",
                where=self.describe(row),
                fix=_mend(self.path),
            ) from None

    def _page(self, row: int, verified: np.ndarray) -> bytes:
        num_bytes = int(self.index.lengths[row])
        try:
            data = os.pread(self._file, num_bytes, int(self.index.offsets[row]))
        except OSError as error:
            raise self._unreadable(row, error) from None
        if len(data) != num_bytes:
            raise self._changed(self.path)
        self._check_page(row, data, verified)
        return data

    def _check_page(self, row: int, data: memoryview | bytes, verified: np.ndarray) -> None:
        if verified[row]:
            return
        if crc32(data) != self.index.crcs[row]:
            raise DataError(
                "the picture is damaged: its checksum (CRC) does not match",
                where=self.describe(row),
                why="The file of the store was changed after stepladder prepare had written it.",
                fix=f"List all damage: stepladder verify {self.path.parent}. {_mend(self.path)}",
            )
        if self._verify is VerifyPages.FIRST_TOUCH:
            verified[row] = True

    def _forget(self) -> None:
        is_trusted = self._verify is VerifyPages.NEVER
        self._verified = np.full(self.info.num_rows, is_trusted)
        self.forms = Forms(self.info.num_rows)

    @cached_property
    def mapping(self) -> np.ndarray | None:
        """Memory mapping of the file, uint8 (size,); None if the mount does not support it.

        Reading past the end of a truncated file kills the process, so call `check` first.
        """
        with contextlib.suppress(OSError):
            data = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ)
            return np.frombuffer(data, dtype=np.uint8)
        return None

    def _stat(self) -> tuple[int, int, int]:
        stat = os.fstat(self._file)
        if stat.st_size != self.info.size_bytes:
            raise self._changed(self.path, num_bytes=stat.st_size)
        return stat.st_size, stat.st_mtime_ns, stat.st_ino

    def _rebuild(self) -> Index:
        try:
            data = rebuild_index(self._file, self.info)
        except LayoutError as error:
            raise DataError(
                f"this file of the store is damaged: {error}",
                where=str(self.path),
                fix=_mend(self.path),
            ) from None
        with contextlib.suppress(OSError):  # the folder may be read-only
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
            f"this file of the store was truncated or replaced{found}",
            where=str(path),
            why="Its size is not the one in manifest.json, so its pictures may be wrong.",
            fix=_mend(path),
        )

    def _unreadable(self, row: int, error: OSError) -> DataError:
        return DataError(
            f"the picture cannot be read from the disk ({error.strerror})",
            where=self.describe(row),
            fix="Check the disk, then run: stepladder verify " + str(self.path.parent),
        )


def _mend(path: Path) -> str:
    """Return the fix for a damaged shard; a shard in a cache is not part of a local store."""
    folder = path.parent
    return mend(folder) if (folder / MANIFEST_NAME).is_file() else PREPARE_AGAIN


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DataError(
            "this file of the store is missing", where=str(path), fix=_mend(path)
        ) from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise ResourceError(
                "this file of the store cannot be opened, because this process has too many open "
                "files",
                where=str(path),
                why="All files of a store are kept open during a training.",
                fix="In this shell, raise the limit, then run the same command again: ulimit -n "
                "65536",
            ) from None
        raise ResourceError(
            f"this file of the store cannot be opened ({error.strerror})",
            where=str(path),
            fix=f"Check its permissions and the disk: ls -l {shlex.quote(str(path))}",
        ) from None

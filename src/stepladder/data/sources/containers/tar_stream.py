"""The bytes of a tar, unpacked where gzip packed them; damage is told with the place.

What follows the end mark is read too: zeros lie in the middle of a file that a copy or a download
left unfinished, and pictures may lie behind them.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from typing import Any, BinaryIO, Final

from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.containers.files import cut_off
from stepladder.errors import DataError

BLOCK: Final = 512
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MAX_HEADER_BYTES: Final = 1 << 20
_SKIP_BYTES: Final = 1 << 20
_END_MARK_BYTES: Final = 2 * BLOCK
_USUAL_RECORD: Final = 20 * BLOCK
_MAX_RECORD: Final = 1 << 20
_COPY_AGAIN: Final = "Copy or download the file again, or give a pattern without it."


class TarStream:
    """A tar, and how far it was read.

    Args:
        file: the tar, open.
        where: its name, for errors.
    """

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file: Any = file
        self._where = where
        self._unit = "bytes"
        self.offset = 0
        self._is_packed = self._read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if self._is_packed:
            self._file = gzip.GzipFile(fileobj=file)
            self._unit = "unpacked bytes"

    def read(self, size: int) -> bytes:
        """Read so many bytes.

        Raises:
            DataError: if there are fewer.
        """
        data = self._read(size)
        if len(data) < size:
            if self.offset == 0 and not data:
                raise self.damaged("is empty", 0)
            raise self.damaged("ends in the middle: it is cut short", self.offset + len(data))
        self.offset += size
        return data

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except StoreAwayError as error:
            raise cut_off(error, self._after(self.offset)) from None
        except (EOFError, zlib.error, OSError) as error:
            raise self.damaged(f"is cut short or damaged ({error})", self.offset) from None

    def skip(self, size: int) -> None:
        """Read so many bytes and forget them."""
        while size > 0:
            size -= len(self.read(min(size, _SKIP_BYTES)))

    def finish(self) -> None:
        """Be sure that a tar ends at the block of zeros that was just read.

        Of one that gzip packed, its checksum is compared at the end.

        Raises:
            DataError: if anything but zeros follows, or more of them than fill a record.
        """
        end = self.offset - BLOCK
        while data := self._read(_SKIP_BYTES):
            num_zeros = len(data) - len(data.lstrip(b"\0"))
            self.offset += num_zeros
            if num_zeros < len(data):
                raise self._goes_on(end)
            if self.offset - end > _MAX_RECORD + _END_MARK_BYTES:
                break
        if not _fills_record(self.offset, self.offset - end):
            raise self._many_zeros(end)

    def _goes_on(self, end: int) -> DataError:
        return self.damaged(
            f"has a block of zeros, its end mark, and more data behind it, at byte {self.offset}",
            end,
            why="A copy or a download that is not whole looks so, and so do tars joined by cat.",
            fix=f"{_COPY_AGAIN} Tars are joined by: tar --concatenate",
        )

    def _many_zeros(self, end: int) -> DataError:
        num_zeros = self.offset - end
        least = "at least " if num_zeros > _MAX_RECORD + _END_MARK_BYTES else ""
        cut = "unpack it first" if self._is_packed else f"truncate -s {end + _END_MARK_BYTES} FILE"
        return self.damaged(
            f"ends in {least}{num_zeros} zeros, which is more than fills a record",
            end,
            why="A copy or a download that is not whole may look so.",
            fix=f"Copy or download the file again. If it is whole, cut the zeros off: {cut}",
        )

    def small(self, size: int, start: int) -> bytes:
        """Read a header's own data, which is never large."""
        if size > _MAX_HEADER_BYTES:
            raise self.damaged(
                f"has a header of {size} bytes",
                start,
                why=f"Names and notes take {_MAX_HEADER_BYTES} at most.",
                fix=f"{_COPY_AGAIN} If it is whole, pack it without extended attributes and "
                "comments: tar --format=gnu --no-xattrs",
            )
        data = self.read(size)
        self.skip(-size % BLOCK)
        return data

    def header(self, block: bytes, start: int) -> tarfile.TarInfo:
        """Take a header apart.

        Raises:
            DataError: if it is damaged.
        """
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise self.damaged(f"is no tar, or is damaged ({error})", start) from None
        if header.size < 0:
            raise self.damaged("has a member of negative size", start)
        return header

    def damaged(
        self, what: str, offset: int, *, why: str | None = None, fix: str = _COPY_AGAIN
    ) -> DataError:
        """Give the error that tells of damage at a place."""
        where = f"{self._where}: {self._after(offset)}"
        return DataError(what, where=where, why=why, fix=fix)

    def _after(self, offset: int) -> str:
        return f"after {offset} {self._unit}"


def _fills_record(num_bytes: int, num_zeros: int) -> bool:
    """Tell whether a tar's size explains the zeros at its end.

    A writer fills its last record: of 10,240 bytes as a rule, and of a power of two where it was
    told so.
    """
    records = [_USUAL_RECORD, *(BLOCK << power for power in range(12))]
    return any(
        num_zeros < record + _END_MARK_BYTES
        and (record == _USUAL_RECORD or num_bytes % record == 0)
        for record in records
    )

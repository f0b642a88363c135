"""Read a tar member by member, sequentially, without writing to disk.

`tarfile` is not used: it stops silently where a file is truncated between two members or has a hole
of zeros, and reads headers of any length into memory. The data after the end mark is checked too:
an incomplete copy or download may have zeros in the middle, with pictures after them.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from stepladder.data.remote.retries import StoreAwayError
from stepladder.data.sources.containers.files import cut_off
from stepladder.data.sources.walk import Skipped, is_hidden
from stepladder.errors import DataError

BLOCK: Final = 512
_GZIP_MAGIC: Final = b"\x1f\x8b"
_MAX_HEADER_BYTES: Final = 1 << 20
_SKIP_BYTES: Final = 1 << 20
_END_MARK_BYTES: Final = 2 * BLOCK
_USUAL_RECORD: Final = 20 * BLOCK
_MAX_RECORD: Final = 1 << 20
_COPY_AGAIN: Final = (
    "Copy or download the file again, or set --source to a quoted pattern that leaves it out."
)
_ZEROS: Final = bytes(BLOCK)
_REGULAR: Final = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE}
_NAMED: Final = {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE}
_WITHOUT_DATA: Final = {
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
}
_SPARSE: Final = "GNU.sparse."  # pax key prefix of sparse files
_SPARSE_NAME: Final = f"{_SPARSE}name"
_MORE_AT: Final = 482  # in a GNU sparse header: another block of the map follows
_MORE_AT_NEXT: Final = 504  # in such a block
_MAX_DIGITS: Final = 20
_NUMBER: Final = re.compile(rb"\d{1,18}")


class TarStream:
    """A tar and the current position in it.

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
        """Read exactly size bytes.

        Raises:
            DataError: if there are fewer.
        """
        data = self._read(size)
        if len(data) < size:
            if self.offset == 0 and not data:
                raise self.damaged("is empty", 0)
            raise self.damaged("is truncated", self.offset + len(data))
        self.offset += size
        return data

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except StoreAwayError as error:
            raise cut_off(error, self._after(self.offset)) from None
        except (EOFError, zlib.error, OSError) as error:
            raise self.damaged(f"is truncated or damaged ({error})", self.offset) from None

    def skip(self, size: int) -> None:
        """Skip size bytes."""
        while size > 0:
            size -= len(self.read(min(size, _SKIP_BYTES)))

    def finish(self) -> None:
        """Check that a tar ends at the block of zeros that was just read.

        Reading to the end also verifies the checksum of a gzip file.

        Raises:
            DataError: if anything but zeros follows, or more zeros than fill a record.
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
            f"has more data after its end mark (a block of zeros), at byte {self.offset}",
            end,
            why="The copy or download is incomplete, or tars were joined with cat.",
            fix=f"{_COPY_AGAIN} To join tars: tar --concatenate",
        )

    def _many_zeros(self, end: int) -> DataError:
        num_zeros = self.offset - end
        least = "at least " if num_zeros > _MAX_RECORD + _END_MARK_BYTES else ""
        cut = "unpack it first" if self._is_packed else f"truncate -s {end + _END_MARK_BYTES} FILE"
        return self.damaged(
            f"ends in {least}{num_zeros} zero bytes, more than the padding of a record",
            end,
            why="The copy or download may be incomplete.",
            fix=f"Copy or download the file again. If it is complete, cut off the zeros: {cut}",
        )

    def small(self, size: int, start: int) -> bytes:
        """Read the data of an extended header, up to the maximum size."""
        if size > _MAX_HEADER_BYTES:
            raise self.damaged(
                f"has an extended header of {size} bytes",
                start,
                why=f"The maximum is {_MAX_HEADER_BYTES} bytes.",
                fix=f"{_COPY_AGAIN} If it is complete, pack it without extended attributes and "
                "comments: tar --format=gnu --no-xattrs",
            )
        data = self.read(size)
        self.skip(-size % BLOCK)
        return data

    def header(self, block: bytes, start: int) -> tarfile.TarInfo:
        """Parse a header.

        Raises:
            DataError: if it is damaged.
        """
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise self.damaged(f"is not a tar, or is damaged ({error})", start) from None
        if header.size < 0:
            raise self.damaged("has a member of negative size", start)
        return header

    def damaged(
        self, what: str, offset: int, *, why: str | None = None, fix: str = _COPY_AGAIN
    ) -> DataError:
        """Return the error for damage at an offset."""
        where = f"{self._where}: {self._after(offset)}"
        return DataError(what, where=where, why=why, fix=fix)

    def _after(self, offset: int) -> str:
        return f"after {offset} {self._unit}"


def _fills_record(num_bytes: int, num_zeros: int) -> bool:
    """Return True if the zeros at the end of a tar are the padding of its last record.

    Records have 10,240 bytes by default; options of the writer make them powers of two.
    """
    records = [_USUAL_RECORD, *(BLOCK << power for power in range(12))]
    return any(
        num_zeros < record + _END_MARK_BYTES
        and (record == _USUAL_RECORD or num_bytes % record == 0)
        for record in records
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of a tar.

    Attributes:
        name: relative path, with "/" as separator.
        size_bytes: size of the file.
        data: its bytes; None if it is larger than the limit.
    """

    name: str
    size_bytes: int
    data: bytes | None


def read_members(
    file: BinaryIO,
    where: str,
    *,
    max_bytes: int,
    skipped: Skipped,
) -> Iterator[Member]:
    """Yield the regular files of a tar or a gzipped tar in file order.

    Args:
        file: the tar, open.
        where: its name, for errors.
        max_bytes: largest member that is read.
        skipped: collects links, devices, sparse files and names outside the folder.

    Raises:
        DataError: if the tar is damaged or truncated; names it and the offset in bytes.
        ResourceError: if the object store does not respond or denies access.
    """
    stream = TarStream(file, where)
    facts: dict[str, str] = {}  # from extended headers before a member
    while True:
        start = stream.offset
        block = stream.read(BLOCK)
        if block == _ZEROS:
            stream.finish()
            return
        header = stream.header(block, start)
        if header.type == tarfile.GNUTYPE_LONGNAME:
            facts = {"path": _text(stream.small(header.size, start)), **facts}
        elif header.type in _NAMED:
            facts = {**facts, **_pax(stream, header.size, start)}
        elif header.type in {tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK}:
            _skip_blocks(stream, header.size)
        else:
            name = facts.get(_SPARSE_NAME) or facts.get("path", header.name)
            size = _size(stream, header, block, facts)
            reason = _why_not(header, name, facts)
            is_read = reason is None and size <= max_bytes
            data = stream.read(size) if is_read else None
            stream.skip(-size % BLOCK) if is_read else _skip_blocks(stream, size)
            if reason:
                skipped.add(f"{where}/{name}", reason)
            elif header.type in _REGULAR:
                name = name.removeprefix("./")
                if not any(map(is_hidden, name.split("/"))):
                    yield Member(name, size, data)
            facts = {}


def _skip_blocks(stream: TarStream, size: int) -> None:
    stream.skip(-(-size // BLOCK) * BLOCK)


def _size(stream: TarStream, header: tarfile.TarInfo, block: bytes, facts: dict[str, str]) -> int:
    """Return the number of data bytes of a member, after skipping the map of a sparse file."""
    if header.type in _WITHOUT_DATA:
        return 0
    more_at = _MORE_AT if header.type == tarfile.GNUTYPE_SPARSE else None
    while more_at is not None and block[more_at]:
        block, more_at = stream.read(BLOCK), _MORE_AT_NEXT
    return int(facts["size"]) if "size" in facts else header.size


def _why_not(header: tarfile.TarInfo, name: str, facts: dict[str, str]) -> str | None:
    if header.issym() or header.islnk():
        return "link(s) in a tar"
    if header.isdir():
        return None
    if header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith(_SPARSE) for key in facts):
        return "sparse file(s) in a tar (pack them without --sparse)"
    if header.type not in _REGULAR:
        return "member(s) of a tar that are not regular files"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return "member(s) of a tar with a name outside the folder"
    return None


def _pax(stream: TarStream, size: int, start: int) -> dict[str, str]:
    """Return the supported fields of a pax header: lines of `LENGTH KEY=VALUE`.

    Source: POSIX.1-2001, pax, "Extended Header".
    """
    data = stream.small(size, start)
    found = {}
    at = 0
    while at < len(data) and data[at]:
        length, _, _ = data[at : at + _MAX_DIGITS].partition(b" ")
        end = at + int(length) if _NUMBER.fullmatch(length) else 0
        if not at + len(length) + 1 < end <= len(data):
            raise stream.damaged("has a damaged pax header", start)
        key, _, value = data[at + len(length) + 1 : end - 1].partition(b"=")
        if key == b"size" and not _NUMBER.fullmatch(value):
            raise stream.damaged(f"has {_text(value[:40])!r} as the size of a member", start)
        if key in {b"path", b"size"} or key.startswith(_SPARSE.encode()):
            found[_text(key)] = _text(value)
        at = end
    return found


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "surrogateescape")

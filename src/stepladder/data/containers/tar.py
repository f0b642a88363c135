"""Read a tar member by member, front to back. Nothing is written to disk, no name is followed.

Our own and not `tarfile`'s walk: that one ends in silence where a file is cut short between two
members, and reads a header of any length into memory.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from stepladder.data.containers.files import cut_off
from stepladder.data.walk import Skipped, is_hidden
from stepladder.errors import DataError

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_HEADER_BYTES = 1 << 16
_SKIP_BYTES = 1 << 20
_REGULAR = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE}
_COPY_AGAIN = "Copy or download the file again, or give a pattern without it."


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of a tar.

    Attributes:
        name: relative, "/" between parts.
        size_bytes: of it.
        data: its bytes; None if there are more of them than wanted.
    """

    name: str
    size_bytes: int
    data: bytes | None


def read_members(
    file: BinaryIO, where: str, *, max_bytes: int, skipped: Skipped
) -> Iterator[Member]:
    """Yield the regular files of a tar, or of one packed by gzip, in order.

    Args:
        file: the tar, open.
        where: its name, for errors.
        max_bytes: largest member that is read.
        skipped: told of links, devices, and names that lead out of a folder.

    Raises:
        DataError: if the tar is damaged or cut short; names it and the place in bytes.
    """
    stream = _Stream(file, where)
    names: dict[str, str] = {}  # what headers before a member say of it
    while True:
        start = stream.offset
        block = stream.read(_BLOCK)
        if block == _ZEROS:
            stream.finish()
            return
        header = stream.header(block, start)
        if header.type == tarfile.GNUTYPE_LONGNAME:
            names = {"path": _text(stream.small(header.size, start)), **names}
        elif header.type == tarfile.XHDTYPE:
            names = {**names, **_pax(stream.small(header.size, start))}
        elif header.type in {tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK}:
            stream.skip(header.size)
        else:
            name = names.get("path", header.name)
            size = int(names["size"]) if names.get("size", "").isdigit() else header.size
            reason = _why_not(header, name)
            is_read = reason is None and size <= max_bytes
            data = stream.read(size) if is_read else None
            stream.skip(-size % _BLOCK if is_read else -(-size // _BLOCK) * _BLOCK)
            if reason:
                skipped.add(f"{where}/{name}", reason)
            elif header.type in _REGULAR and not _is_junk(name):
                yield Member(name.removeprefix("./"), size, data)
            names = {}


class _Stream:
    """The bytes of a tar, unpacked, and how far they were read."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._where = where
        self._is_packed = is_packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        self._file: Any = gzip.GzipFile(fileobj=file) if is_packed else file
        self._unit = "unpacked bytes" if is_packed else "bytes"
        self.offset = 0

    def read(self, size: int) -> bytes:
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
        except (EOFError, zlib.error, OSError) as error:
            where = f"{self._where}: after {self.offset} {self._unit}"
            raise cut_off(error, where) or self.damaged(
                f"is cut short or damaged ({error})", self.offset
            ) from None

    def skip(self, size: int) -> None:
        while size > 0:
            size -= len(self.read(min(size, _SKIP_BYTES)))

    def finish(self) -> None:
        """Read what is packed to its end, where gzip compares its own checksum."""
        while self._is_packed and self._read(_SKIP_BYTES):
            pass

    def small(self, size: int, start: int) -> bytes:
        """Read a header's own data, which is never large."""
        if size > _MAX_HEADER_BYTES:
            raise self.damaged(f"has a header of {size} bytes", start)
        data = self.read(size)
        self.skip(-size % _BLOCK)
        return data

    def header(self, block: bytes, start: int) -> tarfile.TarInfo:
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            raise self.damaged(f"is no tar, or is damaged ({error})", start) from None
        is_link = header.type in {tarfile.LNKTYPE, tarfile.SYMTYPE}
        header.size = 0 if is_link else header.size
        if header.size < 0:
            raise self.damaged("has a member of negative size", start)
        return header

    def damaged(self, what: str, offset: int) -> DataError:
        where = f"{self._where}: after {offset} {self._unit}"
        return DataError(what, where=where, fix=_COPY_AGAIN)


def _why_not(header: tarfile.TarInfo, name: str) -> str | None:
    if header.issym() or header.islnk():
        return "link(s) in a tar"
    if header.isdir():
        return None
    if header.type not in _REGULAR:
        return "member(s) of a tar that are no plain files"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return "member(s) of a tar whose names lead out of it"
    return None


def _is_junk(name: str) -> bool:
    return any(is_hidden(part) for part in name.removeprefix("./").split("/"))


def _pax(data: bytes) -> dict[str, str]:
    """Read path and size of a pax header: lines of `LENGTH KEY=VALUE`."""
    found = {}
    while data:
        length, _, _ = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            break
        line = data[len(length) + 1 : int(length) - 1]
        key, _, value = line.partition(b"=")
        if key in {b"path", b"size"}:
            found[key.decode()] = _text(value)
        data = data[int(length) :]
    return found


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "surrogateescape")

"""Read a tar member by member, front to back. Nothing is written to disk, no name is followed.

Our own and not `tarfile`'s walk: that one ends in silence where a file is cut short between two
members or has a hole of zeros, and reads a header of any length into memory.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from stepladder.data.sources.containers.tar_stream import BLOCK, TarStream
from stepladder.data.sources.walk import Skipped, is_hidden

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
_SPARSE: Final = "GNU.sparse."  # how pax marks a file that is stored without its holes
_SPARSE_NAME: Final = f"{_SPARSE}name"
_MORE_AT: Final = 482  # in the header of GNU's own form: another block of its map follows
_MORE_AT_NEXT: Final = 504  # in such a block
_MAX_DIGITS: Final = 20
_NUMBER: Final = re.compile(rb"\d{1,18}")


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
    file: BinaryIO,
    where: str,
    *,
    max_bytes: int,
    skipped: Skipped,
) -> Iterator[Member]:
    """Yield the regular files of a tar, or of one packed by gzip, in order.

    Args:
        file: the tar, open.
        where: its name, for errors.
        max_bytes: largest member that is read.
        skipped: told of links, devices, files stored sparse, and names that lead out of a folder.

    Raises:
        DataError: if the tar is damaged or cut short; names it and the place in bytes.
        ResourceError: if the object store does not answer, or refuses.
    """
    stream = TarStream(file, where)
    facts: dict[str, str] = {}  # what headers before a member say of it
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
            elif header.type in _REGULAR and not _is_junk(name):
                yield Member(name.removeprefix("./"), size, data)
            facts = {}


def _skip_blocks(stream: TarStream, size: int) -> None:
    stream.skip(-(-size // BLOCK) * BLOCK)


def _size(stream: TarStream, header: tarfile.TarInfo, block: bytes, facts: dict[str, str]) -> int:
    """Tell how many bytes of a member follow, once the map of a sparse one was passed over."""
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
        return "file(s) that a tar holds without their holes (pack them without --sparse)"
    if header.type not in _REGULAR:
        return "member(s) of a tar that are no plain files"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return "member(s) of a tar whose names lead out of it"
    return None


def _is_junk(name: str) -> bool:
    return any(is_hidden(part) for part in name.removeprefix("./").split("/"))


def _pax(stream: TarStream, size: int, start: int) -> dict[str, str]:
    """Read what counts of a pax header: lines of `LENGTH KEY=VALUE`.

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
            raise stream.damaged(f"gives {_text(value[:40])!r} as the size of a member", start)
        if key in {b"path", b"size"} or key.startswith(_SPARSE.encode()):
            found[_text(key)] = _text(value)
        at = end
    return found


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode("utf-8", "surrogateescape")

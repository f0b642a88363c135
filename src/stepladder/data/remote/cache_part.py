"""A file on its way into the cache: what is wanted, and its parts written where they belong."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from stepladder.data.remote.objects import CancelledTransferError
from stepladder.machine.filesystem import leads_to

PART_BYTES: Final = 8 << 20

Fetch: TypeAlias = Callable[[int, int], Iterator[bytes]]
"""Yields the bytes [start, stop) of a file."""


@dataclass(frozen=True, kw_only=True)
class WantedFile:
    """A file as its manifest names it, and how to get it.

    Attributes:
        name: plain, as it will be the end of its name in the cache.
        where: its place, for errors.
        fetch: yields bytes of it; called from several threads.
        fetch_index: gives the small file that belongs to it, or None if there is none.
        enough_bytes: room in which all that is read at once fits, about; 0: not known.
    """

    name: str
    sha256: str
    size_bytes: int
    where: str
    fetch: Fetch
    fetch_index: Callable[[], bytes | None] | None = None
    enough_bytes: int = 0

    @property
    def entry(self) -> str:
        """Its name in the cache."""
        return f"{self.sha256}-{self.name}"


def open_part(part: Path) -> int | None:
    """Open a part and lock it; None if somebody else holds it."""
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    if not leads_to(part, handle):  # its last holder gave it its name, or removed it
        os.close(handle)
        return None
    os.ftruncate(handle, 0)
    return handle


class Transfer:
    """One attempt to write all bytes of a file in their places.

    It has a handle of its own: where one part fails nobody waits for the others, and what they
    still write must not go to another file that was given the same number.
    """

    def __init__(self, file: WantedFile, handle: int, closed: threading.Event) -> None:
        self._file = file
        self._handle = os.dup(handle)
        self.close = weakref.finalize(self, os.close, self._handle)
        self._closed = closed
        self._lock = threading.Lock()
        self._num_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether the file has its size."""
        return self._num_bytes == self._file.size_bytes

    def tasks(self) -> list[Callable[[], None]]:
        """Give what has to be done, to be called from several threads."""
        size = self._file.size_bytes
        starts = range(0, size, PART_BYTES)
        return [partial(self._fetch, at, min(at + PART_BYTES, size)) for at in starts]

    def _fetch(self, start: int, stop: int) -> None:
        at = start
        for chunk in self._file.fetch(start, stop):
            if self._closed.is_set():
                raise CancelledTransferError
            write_at(self._handle, chunk[: stop - at], at)
            at += len(chunk)
        with self._lock:
            self._num_bytes += at - start


def write_at(handle: int, data: bytes, at: int) -> None:
    """Write all bytes at an offset."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written


def sha256_of(handle: int) -> str:
    """Hash an open file from its beginning, in hexadecimal."""
    digest = hashlib.sha256()
    buffer = bytearray(1 << 20)
    at = 0
    while num_read := os.preadv(handle, [buffer], at):
        digest.update(memoryview(buffer)[:num_read])
        at += num_read
    return digest.hexdigest()

"""Manage the space of a cache: its files, which of them are in use, and eviction."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
PART: Final = ".part"
INDEX: Final = ".index"
AHEAD_NS: Final = 3_600_000_000_000  # how far in the future an access time may be
_KEPT_FREE_BYTES: Final = 256 << 20  # disk space left for other programs
_KEY_LENGTH: Final = 64  # hexadecimal digits of a sha256
_BLOCK_BYTES: Final = 512  # unit of st_blocks on all file systems


@dataclass(frozen=True, kw_only=True)
class Room:
    """The result of `CacheRoom.reserve`.

    Attributes:
        fits: whether the space is now reserved.
        in_use_bytes: size of the files in use, which are never removed.
        arriving_bytes: size of the files that others are downloading.
        limit_bytes: maximum size of the cache, or less if the disk is full.
    """

    fits: bool
    in_use_bytes: int
    arriving_bytes: int
    limit_bytes: int


@dataclass
class _Entry:
    """A file and its index; `used_ns` is its last use, or in the future for a prefetched file."""

    path: Path
    used_ns: int = 0
    size_bytes: int = 0
    members: list[Path] = field(default_factory=list)


class CacheRoom:
    """Makes space in a cache folder; one process at a time."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def reserve(self, part: int, size_bytes: int, *, is_ahead: bool) -> Room:
        """Resize an open `.part`, after evicting the least recently used files if necessary.

        Nothing is evicted if that would not be enough.

        Args:
            part: file descriptor of the `.part`.
            size_bytes: size of the file.
            is_ahead: whether this is a prefetch, which does not evict other prefetched files.
        """
        with self.alone():
            entries, arriving_bytes, missing_bytes = self._scan(part)
            used_bytes = sum(entry.size_bytes for entry in entries) + arriving_bytes
            free_bytes = shutil.disk_usage(self._folder).free - missing_bytes - _KEPT_FREE_BYTES
            limit_bytes = min(self._max_bytes, max(0, used_bytes + free_bytes))
            short_bytes = used_bytes + size_bytes - limit_bytes
            with contextlib.ExitStack() as held:
                idle, in_use_bytes = self._idle(entries, short_bytes, is_ahead, held)
                fits = sum(entry.size_bytes for entry in idle) >= short_bytes
                if fits:
                    for entry in idle:
                        _remove(entry)
                    os.ftruncate(part, size_bytes)
            return Room(
                fits=fits,
                in_use_bytes=in_use_bytes,
                arriving_bytes=arriving_bytes,
                limit_bytes=limit_bytes,
            )

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the cache against changes by other processes and threads."""
        handle = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _scan(self, part: int) -> tuple[list[_Entry], int, int]:
        """Return the entries, the size of all downloads, and how much of it is not on disk yet.

        Unlocked parts were left by a killed process and are removed.
        """
        entries: dict[str, _Entry] = {}
        arriving_bytes = missing_bytes = 0
        own = os.fstat(part)
        for path in self._folder.iterdir():
            name = path.name
            if len(name) <= _KEY_LENGTH or name[_KEY_LENGTH] != "-":
                continue
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if not name.endswith(PART):
                    stem = _stem(name)
                    entry = entries.setdefault(stem, _Entry(self._folder / stem))
                    entry.members.append(path)
                    entry.size_bytes += status.st_size
                    if name == stem:
                        entry.used_ns = status.st_atime_ns
                elif not os.path.samestat(status, own):
                    if is_locked(path):
                        arriving_bytes += status.st_size
                        on_disk = status.st_blocks * _BLOCK_BYTES
                        missing_bytes += max(0, status.st_size - on_disk)
                    else:
                        path.unlink()
        return list(entries.values()), arriving_bytes, missing_bytes

    def _idle(
        self, entries: list[_Entry], wanted_bytes: int, is_ahead: bool, held: contextlib.ExitStack
    ) -> tuple[list[_Entry], int]:
        """Lock entries to evict, oldest first, until they are enough; sum up those in use."""
        now_ns = time.time_ns()
        idle: list[_Entry] = []
        in_use_bytes = 0
        for entry in sorted(entries, key=lambda entry: entry.used_ns):
            is_expected = now_ns < entry.used_ns <= now_ns + AHEAD_NS
            if wanted_bytes <= 0 or (is_ahead and is_expected):
                break
            handle = _lock(entry.path)
            if handle is None:
                in_use_bytes += entry.size_bytes
                continue
            if handle >= 0:
                held.callback(os.close, handle)
            idle.append(entry)
            wanted_bytes -= entry.size_bytes
        return idle, in_use_bytes


def is_locked(path: Path) -> bool:
    """Return True if a process holds a lock on a file."""
    handle = _lock(path)
    if handle is None:
        return True
    if handle >= 0:
        os.close(handle)
    return False


def is_idle(folder: Path) -> bool:
    """Return True if no process uses a file of a cache."""
    return not any(is_locked(path) for path in folder.iterdir() if path.is_file())


def _stem(name: str) -> str:
    """Return the name of the file that an entry belongs to: an index belongs to its shard."""
    return name.removesuffix(INDEX)


def _lock(path: Path) -> int | None:
    """Lock a file exclusively and return its handle: -1 if it is gone, None if it is in use."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(entry: _Entry) -> None:
    for path in sorted(entry.members, key=lambda path: path != entry.path):
        path.unlink(missing_ok=True)

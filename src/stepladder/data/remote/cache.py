"""A size-limited cache folder of downloaded files, shared by processes.

    CACHE/CACHEDIR.TAG           marks a cache: backups skip it, `stepladder clean` finds it
    CACHE/lock                   held while files are evicted
    CACHE/SHA256-NAME            a complete, verified file
    CACHE/SHA256-NAME.index      its index, removed with it
    CACHE/SHA256-NAME.part       a download in progress

All state is kept in flocks, which end with their process. Users of a file hold a shared lock, and
the file is not removed while it is locked. The downloading process locks the `.part`; unlocked
parts are removed. Files are evicted in LRU order, by their access time, which the cache sets. The
access time of a prefetched, unused file is an hour in the future: it is not evicted for another
prefetch, but may be evicted for a file that is needed now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final

from stepladder.data.remote.cache_part import (
    Transfer,
    WantedFile,
    open_part,
    sha256_of,
    write_at,
)
from stepladder.data.remote.cache_room import AHEAD_NS, INDEX, PART, CacheRoom, Room
from stepladder.data.remote.objects import CancelledTransferError
from stepladder.data.remote.parallel import run_all
from stepladder.data.sizes import say_size
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.machine.filesystem import leads_to

TAG: Final = "CACHEDIR.TAG"
TAG_TEXT: Final = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# Files that stepladder fetched from elsewhere: it fetches again what is removed.\n"
)
_POLL_S: Final = 0.05
_NUM_TRIES: Final = 2  # downloads of a file with a wrong hash
_ELSEWHERE: Final = "use another folder: --data.cache-dir FOLDER"


class WrongBytesError(DataError):
    """A downloaded file does not match its expected size or hash."""


class Later(Enum):
    """Why a file is not available yet."""

    ARRIVING = auto()
    """Another process or thread is downloading it."""
    NO_ROOM = auto()


class HeldFile:
    """A cached file in use: it is not removed until `release`.

    Attributes:
        path: path of the file.
        was_fetched: whether this call downloaded it.
    """

    def __init__(self, path: Path, handle: int, *, was_fetched: bool) -> None:
        self.path = path
        self.was_fetched = was_fetched
        self._handle = handle

    def release(self) -> None:
        """Release the file."""
        if self._handle >= 0:
            os.close(self._handle)  # releases the lock
            self._handle = -1


class FileCache:
    """A cache of files by sha256 and name; each is downloaded once for all processes.

    Args:
        folder: the folder; created if it does not exist. Its file system must support locks.
        max_bytes: maximum size of all files; less if the disk has less space.
        connections: parallel requests for parts of one file.
        on_message: called with messages about damaged files.

    Raises:
        UsageError: if the folder contains other files, or does not support locks.
        ResourceError: if it cannot be created.
    """

    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        connections: int = 8,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._connections = connections
        self._on_message = on_message or _ignore
        self._room = CacheRoom(folder, max_bytes)
        self._sound: set[tuple[str, int, int, int]] = set()  # verified by this process
        self._closed = threading.Event()
        with _disk_errors_named(folder):
            _make(folder)

    def get(self, file: WantedFile) -> HeldFile:
        """Return a file, downloaded if it is not cached, and keep it in use.

        Raises:
            WrongBytesError: if the downloaded file does not match.
            ResourceError: if there is not enough space.
            CancelledTransferError: if `close` was called.
        """
        while True:
            held = self._obtain(file, is_ahead=False)
            if isinstance(held, HeldFile):
                return held
            if self._closed.wait(_POLL_S):
                raise CancelledTransferError

    def index(self, file: WantedFile) -> bytes | None:
        """Return the index of a file, unverified; None if it is not cached."""
        path = self.folder / file.entry
        try:
            return path.with_name(path.name + INDEX).read_bytes()
        except OSError:
            return None

    def get_ahead(self, file: WantedFile) -> bool:
        """Prefetch a file; it is not in use afterwards, only protected by its access time.

        Returns:
            False if there is no space for it now.

        Raises:
            WrongBytesError, CancelledTransferError: see `get`.
        """
        held = self._obtain(file, is_ahead=True)
        if isinstance(held, HeldFile):
            held.release()
        return held is not Later.NO_ROOM

    def close(self) -> None:
        """Cancel the downloads in other threads."""
        self._closed.set()

    def _obtain(self, file: WantedFile, *, is_ahead: bool) -> HeldFile | Later:
        """Return the file in use, or why it is not available yet."""
        with _disk_errors_named(self.folder):
            path = self.folder / file.entry
            held: HeldFile | Later | None = self._open_whole(path, file)
            if held is None:
                handle = self._open_part(path)
                if handle is None:
                    return Later.ARRIVING
                try:
                    held = self._fetch_whole(path, file, handle, is_ahead=is_ahead)
                finally:
                    if not isinstance(held, HeldFile):
                        os.close(handle)
            if isinstance(held, HeldFile):
                _touch(path, ahead_ns=AHEAD_NS if is_ahead else 0)
            return held

    def _open_whole(self, path: Path, file: WantedFile) -> HeldFile | None:
        """Open a cached file and keep it in use; remove it with a message if it is damaged."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        is_sound = False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if not leads_to(path, handle):
                return None
            is_sound = self._is_sound(handle, file)
            if not is_sound:
                self._on_message(f"{path} is damaged; downloading it again")
                path.unlink(missing_ok=True)
                return None
            return HeldFile(path, handle, was_fetched=False)
        finally:
            if not is_sound:
                os.close(handle)

    def _is_sound(self, handle: int, file: WantedFile) -> bool:
        if os.fstat(handle).st_size != file.size_bytes:
            return False
        identity = _identity(file, handle)
        if identity not in self._sound:
            if sha256_of(handle) != file.sha256:
                return False
            self._sound.add(identity)
        return True

    def _fetch_whole(
        self, path: Path, file: WantedFile, handle: int, *, is_ahead: bool
    ) -> HeldFile | Later:
        """Download a file to its locked part, verify it and rename it."""
        part = path.with_name(path.name + PART)
        is_done = False
        try:
            if path.exists():  # just downloaded by another process
                return Later.ARRIVING
            room = self._room.reserve(handle, file.size_bytes, is_ahead=is_ahead)
            if not room.fits and not is_ahead and not room.arriving_bytes:
                raise self._no_room(file, room)
            if not room.fits:
                return Later.NO_ROOM
            self._fetch(file, handle, path)
            part.rename(path)
            is_done = True
        finally:
            if not is_done:
                part.unlink(missing_ok=True)
        fcntl.flock(handle, fcntl.LOCK_SH)
        if not leads_to(path, handle):  # evicted between the two locks
            return Later.ARRIVING
        self._sound.add(_identity(file, handle))
        return HeldFile(path, handle, was_fetched=True)

    def _fetch(self, file: WantedFile, handle: int, path: Path) -> None:
        for _ in range(_NUM_TRIES):
            transfer = Transfer(file, handle, self._closed)
            tasks = transfer.tasks()
            if (fetch_index := file.fetch_index) is not None:
                tasks.insert(0, lambda: self._keep_index(fetch_index(), path))
            run_all(tasks, num_threads=self._connections)
            transfer.close()
            if transfer.is_whole and sha256_of(handle) == file.sha256:
                return
        raise WrongBytesError(
            "the downloaded file is not the one that the store's manifest.json lists (its size or "
            "sha256 differs)",
            where=file.where,
            why="The file was replaced or damaged after the store was written.",
            fix="Check which other programs write to this address, then write the store again: "
            "repeat your stepladder prepare command with --overwrite",
        )

    def _keep_index(self, data: bytes | None, path: Path) -> None:
        """Write the index of a file being downloaded; readers verify it by its CRC."""
        target = path.with_name(path.name + INDEX)
        handle = None if data is None else self._open_part(target)
        if handle is None or data is None:
            return
        try:
            write_at(handle, data, 0)
            target.with_name(target.name + PART).rename(target)
        finally:
            os.close(handle)

    def _open_part(self, path: Path) -> int | None:
        with self._room.alone():  # the scan for stale parts locks them briefly
            return open_part(path.with_name(path.name + PART))

    def _no_room(self, file: WantedFile, room: Room) -> ResourceError:
        need_bytes = max(room.in_use_bytes + file.size_bytes, file.enough_bytes)
        is_disk = room.limit_bytes < self.max_bytes
        limit = say_size(room.limit_bytes) + (" available on the disk" if is_disk else "")
        more = "free disk space" if is_disk else f"--data.max-cache-bytes {need_bytes}"
        return ResourceError(
            f"the cache of downloaded files has no space for {file.where} "
            f"({say_size(file.size_bytes)}): {say_size(room.in_use_bytes)} of {limit} are in use",
            where=str(self.folder),
            why="Files that a process is reading are never removed from the cache.",
            fix=f"Make more space ({more}), or {_ELSEWHERE}.",
        )


def is_cache(folder: Path) -> bool:
    """Return True if a folder is a stepladder cache."""
    try:
        return (folder / TAG).read_text(encoding="ascii") == TAG_TEXT
    except (OSError, UnicodeDecodeError):
        return False


def _make(folder: Path) -> None:
    if folder.exists() and not is_cache(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            "the folder for the cache already contains files that are not from a cache of "
            "stepladder",
            where=str(folder),
            why="Files in a cache are removed without asking, so these could be lost.",
            fix="Use an empty or new folder: --data.cache-dir FOLDER",
        )
    folder.mkdir(parents=True, exist_ok=True)
    if not is_cache(folder):
        temporary = folder / f".{TAG}.{os.getpid()}.tmp"
        temporary.write_text(TAG_TEXT, encoding="ascii")
        temporary.replace(folder / TAG)
    with (folder / TAG).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError:
            raise UsageError(
                "the file system of this folder, the cache of downloaded files, does not support "
                "file locks",
                where=str(folder),
                why="Without them, one process could remove a file that another is reading.",
                fix="Use a folder on a local disk: --data.cache-dir FOLDER",
            ) from None


def _identity(file: WantedFile, handle: int) -> tuple[str, int, int, int]:
    status = os.fstat(handle)
    return file.entry, status.st_ino, status.st_size, status.st_mtime_ns


def _touch(path: Path, *, ahead_ns: int) -> None:
    with contextlib.suppress(OSError):  # removed, or owned by another user
        at_ns = time.time_ns() + ahead_ns
        os.utime(path, ns=(at_ns, path.stat().st_mtime_ns))


@contextlib.contextmanager
def _disk_errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write to the cache of downloaded files ({error.strerror or error})",
            where=str(folder),
            fix=f"Free disk space, get write permission for the folder, or {_ELSEWHERE}.",
        ) from error


def _ignore(*_: object) -> None:
    """Ignore a message."""

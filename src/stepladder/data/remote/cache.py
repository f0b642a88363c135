"""A folder of files that were fetched, shared by processes, that stays within a size.

    CACHE/CACHEDIR.TAG           what it is: backups leave it out, `stepladder clean` knows it
    CACHE/lock                   held while room is made
    CACHE/SHA256-NAME            a file, whole and checked
    CACHE/SHA256-NAME.index      what belongs to it, and goes with it
    CACHE/SHA256-NAME.part       being fetched

Every state is a flock, which dies with its process. A file in use is locked shared by its users,
and nobody removes it; a `.part` is locked by the one who fetches it, and anybody removes it when it
is not. The file that was used least recently goes first: its access time, which we set, says so.
That of a file which was fetched ahead and not used yet lies an hour ahead of the clock: to fetch
another file ahead does not remove it; one that is wanted at once may.
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
_NUM_TRIES: Final = 2  # of a file that arrives with other bytes
_ELSEWHERE: Final = "name another folder with --data.cache-dir"


class WrongBytesError(DataError):
    """What was fetched is not what was asked for."""


class Later(Enum):
    """Why a file is not there yet."""

    ARRIVING = auto()
    """Another process or thread fetches it."""
    NO_ROOM = auto()


class HeldFile:
    """A file of the cache in use: it stays until `release`.

    Attributes:
        path: where it lies.
        was_fetched: whether it had to be fetched just now.
    """

    def __init__(self, path: Path, handle: int, *, was_fetched: bool) -> None:
        self.path = path
        self.was_fetched = was_fetched
        self._handle = handle

    def release(self) -> None:
        """Let it go."""
        if self._handle >= 0:
            os.close(self._handle)  # and with it the lock
            self._handle = -1


class FileCache:
    """Files by sha256 and name, fetched once by whichever process wants them first.

    Args:
        folder: made if it is not there; its file system needs locks.
        max_bytes: that all files may take together; less where the disk has less.
        connections: requests for parts of one file at once.
        on_message: told of what is damaged.

    Raises:
        UsageError: if the folder holds other things, or has no locks.
        ResourceError: if it cannot be made.
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
        self._sound: set[tuple[str, int, int, int]] = set()  # found so by this process
        self._closed = threading.Event()
        with _disk_errors_named(folder):
            _make(folder)

    def get(self, file: WantedFile) -> HeldFile:
        """Give a file, from the cache or fetched, and hold it.

        Raises:
            WrongBytesError: if what arrives is not that file.
            ResourceError: if there is no room.
            CancelledTransferError: if `close` was called.
        """
        while True:
            held = self._obtain(file, is_ahead=False)
            if isinstance(held, HeldFile):
                return held
            if self._closed.wait(_POLL_S):
                raise CancelledTransferError

    def index(self, file: WantedFile) -> bytes | None:
        """Read what belongs to a file, unchecked; None where the cache does not have it."""
        path = self.folder / file.entry
        try:
            return path.with_name(path.name + INDEX).read_bytes()
        except OSError:
            return None

    def get_ahead(self, file: WantedFile) -> bool:
        """Fetch a file that will be wanted; nothing holds it afterwards but its turn.

        Returns:
            False if there is no room for it now.

        Raises:
            WrongBytesError, CancelledTransferError: as `get`.
        """
        held = self._obtain(file, is_ahead=True)
        if isinstance(held, HeldFile):
            held.release()
        return held is not Later.NO_ROOM

    def close(self) -> None:
        """Cancel what is under way in other threads."""
        self._closed.set()

    def _obtain(self, file: WantedFile, *, is_ahead: bool) -> HeldFile | Later:
        """Give the file, held, if this process can have it now."""
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
        """Hold a file that is there; one that is damaged is removed, which is told."""
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
                self._on_message(f"{path} is damaged: it is fetched again")
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
        """Fetch a file into its locked part, check it and give it its name."""
        part = path.with_name(path.name + PART)
        is_done = False
        try:
            if path.exists():  # by another process, until just now
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
        if not leads_to(path, handle):  # room was made between the two locks
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
            "it is not the file that the manifest names (size or sha256)",
            where=file.where,
            fix="Look at who writes there; then write it again.",
        )

    def _keep_index(self, data: bytes | None, path: Path) -> None:
        """Write the index of a file that is being fetched; its reader checks it by its CRC."""
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
        with self._room.alone():  # who looks for what was left locks it for a moment
            return open_part(path.with_name(path.name + PART))

    def _no_room(self, file: WantedFile, room: Room) -> ResourceError:
        need_bytes = max(room.in_use_bytes + file.size_bytes, file.enough_bytes)
        is_disk = room.limit_bytes < self.max_bytes
        limit = say_size(room.limit_bytes) + (" that the disk has" if is_disk else "")
        more = "free some space there" if is_disk else f"--data.max-cache-bytes {need_bytes}"
        return ResourceError(
            f"the cache has no room for {file.where} ({say_size(file.size_bytes)}): of the "
            f"{limit}, {say_size(room.in_use_bytes)} are in use",
            where=str(self.folder),
            why="Files in use are never removed.",
            fix=f"Give it more room ({more}), or {_ELSEWHERE}.",
        )


def is_cache(folder: Path) -> bool:
    """Tell whether a folder is a cache of ours."""
    try:
        return (folder / TAG).read_text(encoding="ascii") == TAG_TEXT
    except (OSError, UnicodeDecodeError):
        return False


def _make(folder: Path) -> None:
    if folder.exists() and not is_cache(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            "it is no folder of a cache, and holds other things",
            where=str(folder),
            fix="Name another folder with --data.cache-dir.",
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
                "the file system of the cache has no locks",
                where=str(folder),
                why="Processes that share files tell each other by locks what is in use.",
                fix="Name a folder on a local disk with --data.cache-dir.",
            ) from None


def _identity(file: WantedFile, handle: int) -> tuple[str, int, int, int]:
    status = os.fstat(handle)
    return file.entry, status.st_ino, status.st_size, status.st_mtime_ns


def _touch(path: Path, *, ahead_ns: int) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        at_ns = time.time_ns() + ahead_ns
        os.utime(path, ns=(at_ns, path.stat().st_mtime_ns))


@contextlib.contextmanager
def _disk_errors_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"the cache cannot be written ({error.strerror or error})",
            where=str(folder),
            fix=f"Free some space or get write permission there, or {_ELSEWHERE}.",
        ) from error


def _ignore(*_: object) -> None:
    """Tell nobody."""

"""Where a store is made before it is visible: `<out>.partial`, held by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepladder.errors import ResourceError

_HELPERS_END_S = 30.0  # they end with whom they help, at once but for one that waits for a disk
_POLL_S = 0.05
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class WorkFolder:
    """The places in a work folder.

    Attributes:
        root: the folder itself.
        store: what is published in the end: shards, side files.
        records: one JSON file for each finished shard; a shard without one is written again.
        hashes: the cache of the first pass.
        elsewhere: what to type for another place, the end of a sentence.
    """

    root: Path
    elsewhere: str = "give another --out"

    @classmethod
    def beside(cls, out: Path, *, elsewhere: str = elsewhere) -> WorkFolder:
        """Return the work folder of a store: on the same file system, so a rename publishes it."""
        return cls(out.with_name(out.name + ".partial"), elsewhere)

    @property
    def store(self) -> Path:
        """Folder that becomes the store."""
        return self.root / "store"

    @property
    def records(self) -> Path:
        """Folder of the records of finished shards."""
        return self.root / "records"

    @property
    def hashes(self) -> Path:
        """Hashes of the source files."""
        return self.root / "hashes.jsonl"

    def make(self) -> None:
        """Make the folders, when the helpers of a process that was killed have ended.

        Raises:
            ResourceError: if they have not after a while.
        """
        for folder in (self.store, self.records):
            folder.mkdir(parents=True, exist_ok=True)
        until_s = time.monotonic() + _HELPERS_END_S
        with self._helpers_lock() as handle:
            while not _try_lock(handle, fcntl.LOCK_EX):
                if time.monotonic() > until_s:
                    raise ResourceError(
                        "processes of a prepare that was killed still write here",
                        where=str(self.root),
                        fix=f"End them (fuser -k {self._helpers}), or {self.elsewhere}.",
                    )
                time.sleep(_POLL_S)

    @contextlib.contextmanager
    def helping(self) -> Iterator[None]:
        """Say that this process helps the one that holds the folder, while the block runs."""
        with self._helpers_lock() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder while the block runs.

        The lock dies with the process, so one that was killed leaves nothing to clear by hand.

        Raises:
            ResourceError: if another process holds it; names its pid.
        """
        lock = self.root / "lock"
        handle = self._open_locked(lock)
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield
        finally:
            os.close(handle)

    @property
    def _helpers(self) -> Path:
        return self.root / "helpers"

    def remove(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.root, ignore_errors=True)

    @contextlib.contextmanager
    def _helpers_lock(self) -> Iterator[int]:
        handle = os.open(self._helpers, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open_locked(self, lock: Path) -> int:
        while True:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # the holder removed the folder in between
            if not _try_lock(handle, fcntl.LOCK_EX):
                pid = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise ResourceError(
                    f"another process makes a store here (process {pid})",
                    where=str(self.root),
                    fix=f"Wait for it, end it (kill {pid}), or {self.elsewhere}.",
                )
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == lock.stat().st_ino:
                    return handle
            os.close(handle)  # locked a file that its last holder had just removed


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_missing(error: OSError, root: Path) -> bool:
    """Return True if what could not be found is the folder itself, or one around it."""
    if error.errno != errno.ENOENT or not isinstance(error.filename, (str, os.PathLike)):
        return False
    return root.is_relative_to(error.filename)


@contextlib.contextmanager
def disk_errors_named(work: WorkFolder) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says what is kept and what to do.

    Raises:
        ResourceError: instead of the OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(
                f"the disk is full, or a file may not grow further ({error.strerror})",
                where=str(work.root),
                why="What is finished is kept there.",
                fix="Free space and type the same command again: it goes on from here.",
            ) from error
        if error.errno in {errno.ENOTDIR, errno.ENAMETOOLONG} or _is_missing(error, work.root):
            raise ResourceError(
                f"no folder can be made here ({error.strerror})",
                where=str(error.filename or work.root),
                fix=f"Look at the path, or {work.elsewhere}.",
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise ResourceError(
                f"cannot write here ({error.strerror})",
                where=str(error.filename or work.root),
                fix=f"Get write permission there, or {work.elsewhere}.",
            ) from error
        raise

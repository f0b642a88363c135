"""The folder `<out>.partial` where a store is created, locked by one process at a time."""

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

_HELPERS_END_S = 30.0  # helpers end with their parent, at once unless they wait for a disk
_POLL_S = 0.05
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class WorkFolder:
    """Paths in a work folder.

    Attributes:
        root: the folder itself.
        store: what is published at the end: shards and side files.
        records: one JSON file for each finished shard; a shard without one is written again.
        hashes: cache of the first pass.
        elsewhere: how to choose another folder, as the end of a sentence.
    """

    root: Path
    elsewhere: str = "choose another --out"

    @classmethod
    def beside(cls, out: Path, *, elsewhere: str = elsewhere) -> WorkFolder:
        """Return the work folder of a store, on the same file system so that it can be renamed."""
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
        """Create the folders once the helpers of a killed process have ended.

        Raises:
            ResourceError: if they are still running after a timeout.
        """
        for folder in (self.store, self.records):
            folder.mkdir(parents=True, exist_ok=True)
        until_s = time.monotonic() + _HELPERS_END_S
        with self._helpers_lock() as handle:
            while not _try_lock(handle, fcntl.LOCK_EX):
                if time.monotonic() > until_s:
                    raise ResourceError(
                        "an earlier stepladder prepare was killed, but processes that it started "
                        "are still writing to this folder",
                        where=str(self.root),
                        fix=f"End these processes (fuser -k {self._helpers}), or {self.elsewhere}.",
                    )
                time.sleep(_POLL_S)

    @contextlib.contextmanager
    def helping(self) -> Iterator[None]:
        """Mark this process as a helper of the one that holds the lock, while the block runs."""
        with self._helpers_lock() as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder while the block runs.

        The lock ends with the process, so a killed process leaves no stale lock.

        Raises:
            ResourceError: if another process holds the lock; the message has its pid.
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
                continue  # the lock's holder removed the folder in between
            if not _try_lock(handle, fcntl.LOCK_EX):
                pid = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
                os.close(handle)
                raise ResourceError(
                    f"another process is creating a store here (pid {pid})",
                    where=str(self.root),
                    fix=f"Wait until it has ended, end it (kill {pid}), or {self.elsewhere}.",
                )
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(handle).st_ino == lock.stat().st_ino:
                    return handle
            os.close(handle)  # the locked file had just been removed by its last holder


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_missing(error: OSError, root: Path) -> bool:
    """Return True if the missing path is the folder itself or one of its parents."""
    if error.errno != errno.ENOENT or not isinstance(error.filename, (str, os.PathLike)):
        return False
    return root.is_relative_to(error.filename)


@contextlib.contextmanager
def disk_errors_named(work: WorkFolder) -> Iterator[None]:
    """Convert errors about a full or read-only disk to ResourceError.

    Raises:
        ResourceError: instead of the OSError, with what is kept and how to fix it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ResourceError(
                f"the disk is full, or a quota or file size limit is reached ({error.strerror})",
                where=str(work.root),
                why="Files of the store that are already complete are kept in this folder.",
                fix="Free disk space, then run the same command again: it resumes from these "
                "files.",
            ) from error
        if error.errno in {errno.ENOTDIR, errno.ENAMETOOLONG} or _is_missing(error, work.root):
            raise ResourceError(
                f"cannot create a folder here ({error.strerror})",
                where=str(error.filename or work.root),
                fix=f"Check the path, or {work.elsewhere}.",
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise ResourceError(
                f"cannot write here ({error.strerror})",
                where=str(error.filename or work.root),
                fix=f"Get write permission there, or {work.elsewhere}.",
            ) from error
        raise

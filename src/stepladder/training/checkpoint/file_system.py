"""What the file system under a run folder can do, found out by doing it once.

Some file systems (FUSE mounts of object stores, some network shares) have no hard links, cannot
rename a folder, or accept no locks. A run asks at its start rather than fail at its first save.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.errors import ResourceError

_ADVICE: Final = {
    errno.ENOSPC: "The disk is full: free some space, then run the same command again.",
    errno.EDQUOT: "The disk quota is used up: free some space, then run the same command again.",
    errno.EFBIG: "A file size limit was reached (ulimit -f): raise it, then run the command again.",
    errno.EACCES: "Give yourself write permission there, or choose another --run.dir.",
    errno.EPERM: "Give yourself write permission there, or choose another --run.dir.",
    errno.EROFS: "The file system is read-only: choose another --run.dir.",
    errno.EIO: "The disk reported an error: check it, or choose another --run.dir.",
}


class FileOps:
    """The calls on which file systems differ; one object, so that a test can make each fail."""

    def link(self, source: Path, target: Path) -> None:
        """Make a hard link."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a folder."""
        os.rename(source, target)  # noqa: PTH104  # Path.rename would hide the pair of calls

    def sync_folder(self, folder: Path) -> None:
        """Make what was created, renamed and removed in a folder durable."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, handle: int) -> None:
        """Take the exclusive lock of an open file, without waiting.

        Raises:
            BlockingIOError: if another process holds it.
            OSError: if the file system has no locks.
        """
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """What works.

    Attributes:
        has_hard_links: frozen weights are kept once and linked; else copied into each checkpoint.
        has_dir_rename: a checkpoint appears in one step; else file by file, its manifest last.
        has_dir_fsync: a rename can be made to survive a power cut.
        has_locks: flock; else a lock file created exclusively.
    """

    has_hard_links: bool = True
    has_dir_rename: bool = True
    has_dir_fsync: bool = True
    has_locks: bool = True

    def limits(self) -> list[str]:
        """Say in words what does not work and what is done instead."""
        sentences = (
            (self.has_hard_links, "no hard links: frozen weights are copied into each checkpoint"),
            (self.has_dir_rename, "folders cannot be renamed: checkpoints are written in place"),
            (self.has_dir_fsync, "folders cannot be synced: a power cut may lose a checkpoint"),
            (self.has_locks, "no file locks: the lock file is used alone"),
        )
        return [sentence for works, sentence in sentences if not works]


def probe(folder: Path, ops: FileOps | None = None) -> FileSystem:
    """Try in an existing folder what checkpoints need, and leave nothing behind.

    Raises:
        ResourceError: if files cannot be written there, or not renamed over one another.
    """
    ops = ops or FileOps()
    place = folder / f".probe.{os.getpid()}.tmp"
    with saving(f"nothing can be written in {folder}"):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    try:
        with saving(f"files cannot be renamed over one another in {folder}"):
            for name in ("file", "other"):
                (place / name).write_bytes(b"stepladder")
            (place / "other").replace(place / "file")
        (place / "folder").mkdir()
        (place / "folder" / "member").write_bytes(b"")
        return FileSystem(
            has_hard_links=_works(lambda: ops.link(place / "file", place / "link")),
            has_dir_rename=_works(lambda: ops.rename(place / "folder", place / "renamed")),
            has_dir_fsync=_works(lambda: ops.sync_folder(place)),
            has_locks=_works(lambda: _lock_file(place / "file", ops)),
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def require_space(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        ResourceError: if fewer bytes are free than asked for; names both.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ResourceError(
            f"{purpose} needs {num_bytes / 1e6:.0f} MB and {free / 1e6:.0f} MB are free",
            where=str(folder),
            fix="Free some space, or choose another --run.dir.",
        )


@contextmanager
def saving(what: str, *, where: Path | None = None, why: str | None = None) -> Iterator[None]:
    """Turn a refusal of the operating system into an error with advice.

    Raises:
        ResourceError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{what}: {reason}",
            where=str(where) if where else None,
            why=why,
            fix=_ADVICE.get(error.errno or 0, "Choose another --run.dir."),
        ) from error


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return False
    return True


def _lock_file(path: Path, ops: FileOps) -> None:
    with path.open("rb+") as file:
        ops.lock(file.fileno())

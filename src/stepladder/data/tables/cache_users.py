"""Track the users of a materialised DataFrame, so that it is not removed while in use.

A user locks the manifest; the lock ends with the process. On file systems without locks, a user
creates the file `_held.HOST.PROCESS.NUMBER` next to it, which is valid while that process may be
alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import socket
import uuid
import weakref
from pathlib import Path

import psutil

from stepladder.machine.filesystem import find_abilities, leads_to

MANIFEST = "converter.json"
_MARK = re.compile(r"_held\.(?P<host>.+)\.(?P<process>\d+)\.[0-9a-f]+")


class Hold:
    """A reference to written files: they are not removed while any process holds one.

    Raises:
        FileNotFoundError: if the files do not exist or were removed in the meantime.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        handle = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        self._handle = handle
        abilities = find_abilities(folder.parent)  # some mounts grant a lock to every process
        is_sound = abilities is None or abilities.has_locks
        self._has_lock = _lock(handle, fcntl.LOCK_SH) and is_sound
        mark = None if self._has_lock else leave_mark(folder)
        self._close = weakref.finalize(self, _let_go, handle, mark, os.getpid())
        if not leads_to(folder / MANIFEST, handle):
            self._close()
            raise FileNotFoundError(folder)

    def release(self, *, is_removed: bool) -> None:
        """Release the reference; the last holder may remove the files."""
        if not self._close.alive:
            return
        if not self._has_lock:
            self._close()
            if is_removed and not _is_used(self.folder):
                _remove_unlocked(self.folder)
            return
        if _lock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB) and is_removed:
            _remove(self.folder)
        self._close()


def is_written(folder: Path) -> bool:
    """Return True if a folder contains a materialised DataFrame."""
    return (folder / MANIFEST).is_file() and (folder / "_SUCCESS").is_file()


def is_left(folder: Path) -> bool:
    """Return True if a folder is a complete or partial materialised DataFrame without users."""
    if is_written(folder):
        return not _is_used(folder)
    return bool(_marks(folder)) and not _is_marked(folder)


def leave_mark(folder: Path) -> Path | None:
    """Mark a folder as used by this process; return None if the folder is not writable."""
    name = f"_held.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        (folder / name).touch()
    except OSError:
        return None
    return folder / name


def _lock(handle: int, how: int) -> bool:
    """Lock a file; return False if it is locked or the file system does not support locks."""
    try:
        fcntl.flock(handle, how)
    except OSError:
        return False
    return True


def _marks(folder: Path) -> list[re.Match[str]]:
    names = (path.name for path in folder.glob("_held.*"))
    return [found for name in names if (found := _MARK.fullmatch(name)) is not None]


def _is_marked(folder: Path) -> bool:
    """Return True if a process that left a mark may be alive; on other machines it always may."""
    here = socket.gethostname()
    return any(
        mark["host"] != here or psutil.pid_exists(int(mark["process"])) for mark in _marks(folder)
    )


def _let_go(handle: int, mark: Path | None, process: int) -> None:
    os.close(handle)
    if mark is not None and process == os.getpid():  # a forked child keeps its parent's mark
        with contextlib.suppress(OSError):
            mark.unlink()


def _is_used(folder: Path) -> bool:
    """Return True if a process uses the files, or may use them."""
    if _is_marked(folder):
        return True
    try:
        with (folder / MANIFEST).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return True
    except OSError:  # no locks are supported and there are no marks
        return False
    return False


def _remove(folder: Path) -> None:
    # renamed first, so that no process finds a partial folder
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        folder.rename(gone)
    except FileNotFoundError:  # removed manually
        return
    except OSError:  # folders cannot be renamed on this file system
        (folder / MANIFEST).unlink(missing_ok=True)
        gone = folder
    shutil.rmtree(gone, ignore_errors=True)


def _remove_unlocked(folder: Path) -> None:
    """Remove unused files; restore them if a process marks them before the manifest is removed."""
    manifest = folder / MANIFEST
    try:
        data = manifest.read_bytes()
        manifest.unlink()
    except FileNotFoundError:  # removed by another process or manually
        return
    if _is_marked(folder):
        manifest.write_bytes(data)
    else:
        shutil.rmtree(folder, ignore_errors=True)

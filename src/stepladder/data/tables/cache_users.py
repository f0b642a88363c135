"""Who uses what was written of a DataFrame, so that nobody removes it under another.

A lock on its manifest, which dies with its process; where the file system has no locks, a file
`_held.HOST.PROCESS.NUMBER` beside it, which counts as long as that process may live.
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
    """A claim on what was written: while there is one, in any process, it is not removed.

    Raises:
        FileNotFoundError: if it is not there, or was removed meanwhile.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        handle = os.open(folder / MANIFEST, os.O_RDONLY | os.O_CLOEXEC)
        self._handle = handle
        abilities = find_abilities(folder.parent)  # some mounts grant a lock to all who ask
        is_sound = abilities is None or abilities.has_locks
        self._has_lock = _lock(handle, fcntl.LOCK_SH) and is_sound
        mark = None if self._has_lock else leave_mark(folder)
        self._close = weakref.finalize(self, _let_go, handle, mark, os.getpid())
        if not leads_to(folder / MANIFEST, handle):
            self._close()
            raise FileNotFoundError(folder)

    def release(self, *, is_removed: bool) -> None:
        """Let go; the last one that does may remove the files."""
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
    """Tell whether a folder is what was written of a DataFrame."""
    return (folder / MANIFEST).is_file() and (folder / "_SUCCESS").is_file()


def is_left(folder: Path) -> bool:
    """Tell whether a folder is what was written of a DataFrame, in part or whole, and not used."""
    if is_written(folder):
        return not _is_used(folder)
    return bool(_marks(folder)) and not _is_marked(folder)


def leave_mark(folder: Path) -> Path | None:
    """Say in a folder that this process uses it; None where nothing may be written."""
    name = f"_held.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        (folder / name).touch()
    except OSError:
        return None
    return folder / name


def _lock(handle: int, how: int) -> bool:
    """Take a lock; False where another one holds it, or the file system has none."""
    try:
        fcntl.flock(handle, how)
    except OSError:
        return False
    return True


def _marks(folder: Path) -> list[re.Match[str]]:
    names = (path.name for path in folder.glob("_held.*"))
    return [found for name in names if (found := _MARK.fullmatch(name)) is not None]


def _is_marked(folder: Path) -> bool:
    """Tell whether a process that left a mark may live: of another machine's nobody knows."""
    here = socket.gethostname()
    return any(
        mark["host"] != here or psutil.pid_exists(int(mark["process"])) for mark in _marks(folder)
    )


def _let_go(handle: int, mark: Path | None, process: int) -> None:
    os.close(handle)
    if mark is not None and process == os.getpid():  # a fork leaves its parent's
        with contextlib.suppress(OSError):
            mark.unlink()


def _is_used(folder: Path) -> bool:
    """Tell whether a process holds what was written, or might."""
    if _is_marked(folder):
        return True
    try:
        with (folder / MANIFEST).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError, PermissionError):
        return True
    except OSError:  # there are no locks, and nobody has left a mark
        return False
    return False


def _remove(folder: Path) -> None:
    # renamed first, so that nobody finds half of it
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        folder.rename(gone)
    except FileNotFoundError:  # somebody removed it by hand
        return
    except OSError:  # folders cannot be renamed here
        (folder / MANIFEST).unlink(missing_ok=True)
        gone = folder
    shutil.rmtree(gone, ignore_errors=True)


def _remove_unlocked(folder: Path) -> None:
    """Remove what nobody used a moment ago; who marks it before the manifest goes gets it back."""
    manifest = folder / MANIFEST
    try:
        data = manifest.read_bytes()
        manifest.unlink()
    except FileNotFoundError:  # by another one, or by hand
        return
    if _is_marked(folder):
        manifest.write_bytes(data)
    else:
        shutil.rmtree(folder, ignore_errors=True)

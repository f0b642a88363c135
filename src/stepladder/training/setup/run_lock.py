"""A lock on the run folder, so that one process at a time uses it."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stepladder.errors import ResourceError
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.training.checkpoint.folder_checks import saving

LOCK_FILE: Final = "lock"
_HALF_WRITTEN_S: Final = 10.0


class RunLock:
    """Holds the file for the `with` block; its content is the owner as JSON.

    With file locks, the kernel releases it when its owner exits or is killed. Without them the
    file itself is the lock: it is taken over if its owner's process no longer runs on this host.

    Raises:
        ResourceError: on entering, if another process holds it; the message has its pid and host.
    """

    def __init__(self, path: Path, *, file_system: FolderAbilities, ops: FileCalls) -> None:
        self._path = path
        self._has_locks = file_system.has_locks
        self._ops = ops
        self._handle = -1

    def __enter__(self) -> Self:
        with saving("the run folder cannot be locked", where=self._path):
            self._handle = self._take_locked() if self._has_locks else self._take_exclusive()
            try:
                os.ftruncate(self._handle, 0)
                os.write(self._handle, json.dumps(_ourselves(), indent=2).encode() + b"\n")
            except BaseException:
                self._release()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._release()

    def _release(self) -> None:
        try:
            if self._is_ours(self._handle):
                self._path.unlink(missing_ok=True)
        finally:
            os.close(self._handle)

    def _take_locked(self) -> int:
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            try:
                self._ops.lock(handle)
            except BlockingIOError:
                os.close(handle)
                raise self._refusal() from None
            except BaseException:
                os.close(handle)
                raise
            if self._is_ours(handle):
                return handle
            os.close(handle)  # its owner removed it after we opened it and before we locked it

    def _take_exclusive(self) -> int:
        for _ in range(2):
            try:
                return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                owner = _read_owner(self._path)
                if _may_live(owner, self._path):
                    break
                self._set_aside(owner)
        raise self._refusal()

    def _set_aside(self, owner: dict[str, Any] | None) -> None:
        """Remove a stale file, unless another process has just replaced it with its own."""
        aside = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        if _read_owner(aside) != owner:
            aside.rename(self._path)
            raise self._refusal()
        aside.unlink()

    def _is_ours(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.lstat())
        except FileNotFoundError:
            return False

    def _refusal(self) -> ResourceError:
        owner = _read_owner(self._path) or {}
        pid, host, started = (owner.get(key, "unknown") for key in ("pid", "host", "started"))
        fix = f"Wait for it, stop it (kill {pid} on {host}), or choose another --run.dir."
        if not self._has_locks:
            fix += f" If it is no longer running, remove {self._path}."
        return ResourceError(
            f"another process is using this run folder: pid {pid} on {host}, since {started}",
            where=str(self._path.parent),
            why="Two processes in one folder would replace each other's checkpoints.",
            fix=fix,
        )


def may_be_held(run: Path) -> bool:
    """Return True if another process may be using a run folder; takes no lock."""
    path = run / LOCK_FILE
    return path.exists() and _may_live(_read_owner(path), path)


def _ourselves() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "start_ticks": _start_ticks(os.getpid()),
    }


def _read_owner(path: Path) -> dict[str, Any] | None:
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _may_live(owner: dict[str, Any] | None, path: Path) -> bool:
    """Return True if the owner may still be running, and when in doubt."""
    if owner is None:  # between being created and being written, or killed there
        try:
            return time.time() - path.stat().st_mtime < _HALF_WRITTEN_S
        except FileNotFoundError:
            return False
    pid = owner.get("pid")
    if owner.get("host") != socket.gethostname() or type(pid) is not int:
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return owner.get("start_ticks") == _start_ticks(pid)


def _start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; pid and start are unique."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None

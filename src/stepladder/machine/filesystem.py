"""Test what the file system of a folder supports.

Mounts of object stores (FUSE, such as /dbfs) and network shares look like folders, but may not
support atomic renames of folders, locks, or writes in the middle of a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stepladder.machine.activity import moved

MOUNTS: Final = Path("/proc/self/mounts")
SYS: Final = Path("/sys")
_FAR_KINDS: Final = ("fuse", "9p", "nfs", "cifs", "smb", "ceph", "lustre", "davfs")
_HASHED_BYTES: Final = 1 << 22
_LOCAL_KIND: Final = "fuseblk"  # a local disk, such as NTFS
_ESCAPES: Final = (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\"))


class FileCalls:
    """Calls that some file systems do not support; tests replace them to fail."""

    def link(self, source: Path, target: Path) -> None:
        """Create a hard link."""
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a folder."""
        os.rename(source, target)  # noqa: PTH104  # for symmetry with replace

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over another."""
        os.replace(source, target)  # noqa: PTH105

    def lock(self, handle: int) -> None:
        """Acquire the exclusive lock of an open file, without waiting.

        Raises:
            BlockingIOError: if another process holds it.
            OSError: if the file system has no locks.
        """
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def sync(self, handle: int) -> None:
        """Sync an open file to the disk."""
        os.fsync(handle)

    def sync_folder(self, folder: Path) -> None:
        """Sync a folder, so that creations, renames and removals in it are durable."""
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def write_at(self, handle: int, data: bytes, at: int) -> None:
        """Write in the middle of a file."""
        os.pwrite(handle, data, at)

    def map(self, handle: int) -> bytes:
        """Read a file through a memory mapping."""
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as data:
            return data[:]


@dataclass(frozen=True, kw_only=True)
class FolderAbilities:
    """What the file system of a folder supports.

    Attributes:
        kind: type of the file system, such as ext4, fuse.s3fs or nfs4; for information only.
        is_far: whether file systems of this type are usually on a network.
        has_sync: whether files can be synced.
    """

    kind: str = field(default="", compare=False)
    is_far: bool = field(default=False, compare=False)
    has_hard_links: bool = True
    has_folder_rename: bool = True
    has_file_rename: bool = True
    has_locks: bool = True
    has_sync: bool = True
    has_folder_sync: bool = True
    has_random_writes: bool = True
    has_mapping: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether it supports everything that stores and caches need."""
        return not self.missing()

    @property
    def can_hold_work(self) -> bool:
        """Whether it supports work folders: locks, syncs, random writes and renames."""
        return (
            self.has_folder_rename
            and self.has_file_rename
            and self.has_locks
            and self.has_sync
            and self.has_random_writes
        )

    def missing(self) -> list[str]:
        """List in words what is not supported; hard links and folder syncs are not checked."""
        words = (
            (self.has_folder_rename, "folders cannot be renamed"),
            (self.has_file_rename, "files cannot be renamed"),
            (self.has_locks, "files cannot be locked"),
            (self.has_sync, "files cannot be synced"),
            (self.has_random_writes, "files do not support random writes"),
            (self.has_mapping, "files cannot be memory-mapped"),
        )
        return [said for works, said in words if not works]


def find_abilities(folder: Path, calls: FileCalls | None = None) -> FolderAbilities | None:
    """Test what an existing folder supports, and clean up.

    Returns:
        The result, or None if the folder is not writable.
    """
    with contextlib.suppress(OSError):
        return try_abilities(folder, calls)
    return None


def try_abilities(folder: Path, calls: FileCalls | None = None) -> FolderAbilities:
    """Test what an existing folder supports, and clean up.

    Raises:
        OSError: if the folder is not writable.
    """
    calls = calls or FileCalls()
    place = Path(tempfile.mkdtemp(prefix=".stepladder-probe.", suffix=".tmp", dir=folder))
    try:
        (place / "folder").mkdir()
        (place / "folder" / "member").write_bytes(b"member")
        (place / "file").write_bytes(b"stepladder")
        (place / "other").write_bytes(b"other")
        return FolderAbilities(
            kind=kind_of(folder),
            is_far=is_far(folder),
            has_hard_links=_works(lambda: _link(place, calls)),
            has_folder_rename=_works(lambda: _rename_folder(place, calls)),
            has_file_rename=_works(lambda: _rename_file(place, calls)),
            has_locks=_works(lambda: _lock_twice(place / "file", calls)),
            has_sync=_works(lambda: _with_file(place / "file", calls.sync)),
            has_folder_sync=_works(lambda: _sync_folder(place, calls)),
            has_random_writes=_works(lambda: _write_middle(place / "file", calls)),
            has_mapping=_works(lambda: _map(place / "file", calls)),
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def kind_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of a path's file system; empty if it is unknown."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = path.resolve()
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1]
        for escape, letter in _ESCAPES:
            point = point.replace(escape, letter)
        # of two mounts on one folder, the later one is visible
        if len(point) >= best and place.is_relative_to(point):
            best, kind = len(point), fields[2]
    return kind


def is_far(path: Path, mounts: Path = MOUNTS) -> bool:
    """Return True if the type of a path's file system is usually on a network."""
    kind = kind_of(path, mounts)
    return kind.startswith(_FAR_KINDS) and kind != _LOCAL_KIND


def nearest_folder(path: Path) -> Path:
    """Return a path if it is a folder, else its nearest parent that is one."""
    place = path.absolute()
    return next(folder for folder in (place, *place.parents) if folder.is_dir())


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content; of a symbolic link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def leads_to(path: Path, handle: int) -> bool:
    """Return True if a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_HASHED_BYTES):
            digest.update(chunk)
            moved()
    return digest.hexdigest()


def is_on_spinning_disk(path: Path, sys: Path = SYS) -> bool:
    """Return True if the kernel reports that a path's disk is a spinning disk.

    Virtual disks always report that, so only SATA and SAS names (`sd`) are considered.

    Args:
        path: an existing file or folder.
        sys: mount point of sysfs.
    """
    try:
        device = path.stat().st_dev
        place = (sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").resolve()
        disk = place.parent if (place / "partition").exists() else place
        return disk.name.startswith("sd") and (disk / "queue" / "rotational").read_text()[:1] == "1"
    except OSError:
        return False


def _link(place: Path, calls: FileCalls) -> bool:
    calls.link(place / "file", place / "link")
    (place / "link").unlink()  # so that later writes affect only one file
    return True


def _sync_folder(place: Path, calls: FileCalls) -> bool:
    calls.sync_folder(place)
    return True


def _rename_folder(place: Path, calls: FileCalls) -> bool:
    calls.rename(place / "folder", place / "renamed")
    return (place / "renamed" / "member").read_bytes() == b"member"


def _rename_file(place: Path, calls: FileCalls) -> bool:
    (place / "new").write_bytes(b"new")
    calls.replace(place / "new", place / "other")
    return (place / "other").read_bytes() == b"new"


def _with_file(path: Path, call: Callable[[int], None]) -> bool:
    with path.open("rb+") as file:
        call(file.fileno())
    return True


def _lock_twice(path: Path, calls: FileCalls) -> bool:
    """Check that a locked file cannot be locked again, as some mounts grant all locks."""
    with path.open("rb+") as first, path.open("rb+") as second:
        calls.lock(first.fileno())
        try:
            calls.lock(second.fileno())
        except BlockingIOError:
            return True
    return False


def _write_middle(path: Path, calls: FileCalls) -> bool:
    with path.open("rb+") as file:
        calls.write_at(file.fileno(), b"STEP", 0)
    return path.read_bytes() == b"STEPladder"


def _map(path: Path, calls: FileCalls) -> bool:
    with path.open("rb") as file:
        return calls.map(file.fileno()).endswith(b"ladder")


def _works(act: Callable[[], bool]) -> bool:
    with contextlib.suppress(OSError):
        return act()
    return False

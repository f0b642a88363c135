"""A folder of files in an object store, or on a mount without the features of a local disk.

Renames, locks and fsync are not needed. Files that must appear together have a manifest, which is
written last and contains the sizes and hashes of the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from stepladder.data.remote.objects import (
    CancelledTransferError,
    NoSuchObjectError,
    ObjectStore,
)
from stepladder.data.remote.places import ObjectPlace, supported_place
from stepladder.data.remote.s3 import S3Objects
from stepladder.errors import ResourceError
from stepladder.machine.activity import moved

_CHUNK_BYTES: Final = 1 << 20


class Copies(Protocol):
    """Files by name; names may contain slashes. `str` returns the address."""

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the sizes of all files by name, or of those below a name with a trailing slash."""

    def has(self, name: str, *, size_bytes: int, sha256: str) -> bool:
        """Return True if a file exists with this content."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to the local disk."""

    def put_file(
        self,
        name: str,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy a file from the local disk."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a small file; readers see the old or the complete new content."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""

    def close(self) -> None:
        """Cancel waits before retries."""


def open_copies(path: Path, *, on_message: Callable[[str], None] | None = None) -> Copies:
    """Open a folder of copies by a local path or an address in an object store.

    Raises:
        UsageError: if it is an address that is not supported.
        MissingExtraError: if it is in an object store, and boto3 is not installed.
    """
    place = supported_place(path)
    if place is not None:
        return ObjectCopies(S3Objects(on_message=on_message), place)
    return FolderCopies(path)


def copy_folder(folder: Path, out: Copies, *, last: str) -> None:
    """Copy the files of a folder, with one of them last."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.name == last, path.name)):
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        out.put_file(path.name, path, sha256=sha256)


class ObjectCopies:
    """Copies in an object store."""

    def __init__(self, objects: ObjectStore, place: ObjectPlace) -> None:
        self._objects = objects
        self._place = place

    def __str__(self) -> str:
        return str(self._place)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the sizes of all files by name."""
        start = len(self._place.key) + 1 if self._place.key else 0
        found = self._objects.list_below(self._place.join(below.rstrip("/")))
        return {info.place.key[start:]: info.size_bytes for info in found}

    def has(self, name: str, *, size_bytes: int, sha256: str) -> bool:
        """Return True if an object exists with this content, according to its metadata."""
        info = self._objects.info(self._place.join(name))
        return info is not None and (info.size_bytes, info.sha256) == (size_bytes, sha256)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small object; None if it does not exist."""
        try:
            return self._objects.read(self._place.join(name))
        except NoSuchObjectError:
            return None

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a file."""
        with path.open("wb") as file:
            for chunk in self._objects.stream(self._place.join(name)):
                file.write(chunk)
                moved()

    def put_file(
        self,
        name: str,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Upload a file."""
        self._objects.put_file(
            self._place.join(name), path, sha256=sha256, is_cancelled=is_cancelled
        )

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a small object."""
        self._objects.put_bytes(self._place.join(name), data)

    def delete(self, name: str) -> None:
        """Remove an object."""
        self._objects.delete(self._place.join(name))

    def close(self) -> None:
        """Cancel waits before retries."""
        self._objects.close()


class FolderCopies:
    """Copies in a folder: files are written sequentially."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the sizes of all files by name."""
        files = (path for path in (self._folder / below).rglob("*") if path.is_file())
        return {path.relative_to(self._folder).as_posix(): path.stat().st_size for path in files}

    def has(self, name: str, *, size_bytes: int, sha256: str) -> bool:
        """Return True if a file exists with this content, by reading it."""
        path = self._folder / name
        try:
            if path.stat().st_size != size_bytes:
                return False
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == sha256
        except OSError:
            return False

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to another path."""
        shutil.copyfile(self._folder / name, path)
        moved()

    def put_file(
        self,
        name: str,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy a file and read it back, as a mount may lose data."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, target.open("wb") as file:
            while chunk := source.read(_CHUNK_BYTES):
                if is_cancelled():
                    raise CancelledTransferError
                file.write(chunk)
            _sync(file.fileno())
        if not self.has(name, size_bytes=path.stat().st_size, sha256=sha256):
            raise ResourceError(
                "the file was copied to this mounted folder, but reading it back returns other "
                "bytes (its sha256 differs)",
                where=str(target),
                fix="Check the mounted disk or network share (dmesg), then run the same command "
                "again.",
            )

    def put_bytes(self, name: str, data: bytes) -> None:
        """Write a small file, atomically if files can be renamed."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            _write(temporary, data)
            temporary.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            _write(target, data)

    def delete(self, name: str) -> None:
        """Remove a file and its empty parent folders."""
        path = self._folder / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for folder in path.relative_to(self._folder).parents[:-1]:
                (self._folder / folder).rmdir()

    def close(self) -> None:
        """Do nothing."""


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        _sync(file.fileno())


def _sync(handle: int) -> None:
    with contextlib.suppress(OSError):  # not supported by every mount
        os.fsync(handle)

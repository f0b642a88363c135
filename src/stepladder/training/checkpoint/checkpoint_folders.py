"""Create, replace, find and remove checkpoint folders by name.

Hidden names belong to a save in progress: `.NAME.PID.tmp` is being written or removed, and
`.NAME.PID.old` is a checkpoint that is about to be replaced. A kill between the two renames of a
replacement leaves only the latter, which is then used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stepladder.errors import DataError, ResourceError
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.training.checkpoint.checkpoint_files import (
    MANIFEST,
    MANIFEST_END,
    open_member,
    write_file,
)

_NAME: Final = re.compile(r"(step|best)-(\d{9,18})", re.ASCII)
_HIDDEN: Final = re.compile(r"\.((?:step|best|frozen)-.+)\.(\d+)\.(tmp|old)", re.ASCII)


def is_name(name: str) -> bool:
    """Return True if this is a valid checkpoint name, which never contains a path."""
    return _NAME.fullmatch(name) is not None


def number_of(name: str) -> int:
    """Return the step in a checkpoint's name."""
    return int(name.partition("-")[2])


class CheckpointFolders:
    """Checkpoint folders in a folder; written file by file if folders cannot be renamed."""

    def __init__(self, folder: Path, file_system: FolderAbilities, ops: FileCalls) -> None:
        self._folder = folder
        self._file_system = file_system
        self._ops = ops

    def names(self) -> list[str]:
        """List the names by kind and number, including incomplete and damaged ones."""
        if not self._folder.is_dir():
            return []
        found = set()
        for path in self._folder.iterdir():
            match = _HIDDEN.fullmatch(path.name)
            name = match[1] if match and match[3] == "old" else path.name
            if is_name(name):
                found.add(name)
        return sorted(found, key=lambda name: (name[:4], number_of(name)))

    def locate(self, name: str) -> Path:
        """Return the folder of a checkpoint, or of its old version while it is being replaced.

        Raises:
            DataError: if it does not exist.
        """
        if not is_name(name):
            raise DataError(
                f"{name!r} is not a name that a checkpoint can have", where=str(self._folder)
            )
        path = self._folder / name
        retired = self._retired(name)
        if retired and not _is_complete(path):
            return retired[0]
        if not os.path.lexists(path):
            raise DataError(f"there is no checkpoint {name}", where=str(self._folder))
        return path

    def is_finished(self, name: str) -> bool:
        """Return True if a checkpoint of this name was once committed."""
        return self._file_system.has_folder_rename or _is_complete(self._folder / name)

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield an empty folder to write to; commit it on exit, or remove it on an error."""
        final = self._folder / name
        if self._file_system.has_folder_rename:
            work = self._hidden(name, "tmp")
            _delete(work)
        else:
            work = final
            self._retire(name)
        work.mkdir()
        try:
            yield work
            self._sync(work)
            if work != final:
                self._retire(name)
                try:
                    self._ops.rename(work, final)
                except BaseException:
                    self._bring_back(name)
                    raise
            self._sync(self._folder)
        except BaseException:
            with suppress(OSError):
                _delete(work)
            raise
        with suppress(OSError):  # the next save's clean tries again
            for retired in self._retired(name):
                _delete(retired)

    def remove(self, name: str) -> None:
        """Remove a checkpoint; a partly removed one is never mistaken for a checkpoint."""
        for path in (*self._retired(name), self._folder / name):
            if self._file_system.has_folder_rename and path.is_dir() and not path.is_symlink():
                doomed = self._hidden(name, "tmp")
                _delete(doomed)
                self._ops.rename(path, doomed)
                _delete(doomed)
            else:
                _delete(path)

    def clean(self) -> None:
        """Complete or undo unfinished work of a killed process."""
        for path in sorted(self._folder.iterdir()):
            if is_name(path.name) and not self.is_finished(path.name):
                _delete(path)
            match = _HIDDEN.fullmatch(path.name)
            if match is None or _is_other_alive(int(match[2])):
                continue
            name, kind = match[1], match[3]
            with suppress(OSError):
                if kind == "tmp" or _is_complete(self._folder / name) or not _is_complete(path):
                    _delete(path)
                elif self._file_system.has_folder_rename:
                    self._bring_back(name)

    def _retire(self, name: str) -> None:
        """Set aside a checkpoint that will be replaced, readable under its hidden name."""
        path = self._folder / name
        if _is_complete(path) and not path.is_symlink():
            retired = self._hidden(name, "old")
            _delete(retired)
            if self._file_system.has_folder_rename:
                self._ops.rename(path, retired)
            else:
                _copy(path, retired)
                self._sync(retired)
                self._sync(self._folder)
        _delete(path)

    def _bring_back(self, name: str) -> None:
        for retired in self._retired(name)[:1]:
            _delete(self._folder / name)
            self._ops.rename(retired, self._folder / name)

    def _retired(self, name: str) -> list[Path]:
        return [path for path in sorted(self._folder.glob(f".{name}.*.old")) if _is_complete(path)]

    def _hidden(self, name: str, kind: str) -> Path:
        return self._folder / f".{name}.{os.getpid()}.{kind}"

    def _sync(self, folder: Path) -> None:
        if self._file_system.has_folder_sync:
            self._ops.sync_folder(folder)


def _is_complete(path: Path) -> bool:
    """Return True if a manifest is complete; a kill can leave only its first bytes.

    An unreadable one counts as complete: loading it reports the problem.
    """
    try:
        with open_member(path, MANIFEST) as (file, size):
            file.seek(max(0, size - len(MANIFEST_END)))
            return file.read() == MANIFEST_END
    except (DataError, ResourceError):
        return os.path.lexists(path / MANIFEST)


def _is_other_alive(pid: int) -> bool:
    """Return True if another process has this id; our own id is stale, as containers reuse ids."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _copy(source: Path, target: Path) -> None:
    """Copy a folder's files durably, the manifest last."""
    target.mkdir()
    for path in sorted(source.iterdir(), key=lambda path: path.name == MANIFEST):
        write_file(target / path.name, [path.read_bytes()])


def _delete(path: Path) -> None:
    """Delete a file or a folder, its manifest first; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

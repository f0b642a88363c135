"""`stepladder clean`."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
from tyro.conf import Positional

from stepladder.cli.parse import Output, Switch, Unprefixed, parse
from stepladder.data.remote.cache import is_cache
from stepladder.data.remote.cache_room import is_idle
from stepladder.data.remote.places import shown, supported_place
from stepladder.data.store.manifest import is_copy
from stepladder.data.tables.cache_users import is_left
from stepladder.errors import DataError, UsageError
from stepladder.machine.filesystem import remove
from stepladder.records.run_files import JOB_MARKS, has_any

# A save, a climb or a prepare in progress has a hidden name with its process id, or a name that
# ends in .partial; see docs/store.md, docs/checkpoints.md and docs/run-folder.md.
_TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.(tmp|old)", re.ASCII)
_PARTIAL_SUFFIX = ".partial"
_COPIES_SUFFIX = ".pixels"
_FEATURES_KEY = re.compile(r"[0-9a-f]{64}")  # see docs/features.md
_FEATURES_FILE = "features.npy"
_LEFT_BY_RUNS = ("events.discarded.jsonl", "crash.txt")
# A watched script renames this file at once; it only remains if the script was killed in between.
_WATCH_TEMPORARY = ".watch.json.tmp"
_RENAMED_WITHIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Flags:
    """List files left by interrupted work: partial stores, saves, trials, discarded events.

    Caches are listed too: features, decoded copies of stores, saved DataFrames, and downloaded
    files. A run that needs them computes or downloads them again.
    Files in use by a running process are not listed. Checkpoints, stores, results and reports are
    never removed.

    Examples:
      stepladder clean runs             list only
      stepladder clean runs --yes       list and remove
      stepladder clean --keep-caches    only files of killed processes
    """

    path: Positional[Path] = Path()
    """Folder to search, including its subfolders."""
    yes: Switch = False
    """Remove the listed files."""
    keep_caches: Switch = False
    """Do not list or remove caches."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="clean", default=Flags())
    if supported_place(flags.path) is not None:
        raise UsageError(
            "stepladder clean removes files on this machine only, but this is an address in an "
            "object store",
            where=shown(flags.path),
            fix="Pass the local folder that contains the cache, such as the current folder: "
            "stepladder clean .",
        )
    if not flags.path.is_dir():
        raise DataError(
            "the folder does not exist",
            where=str(flags.path),
            fix="Pass a folder that contains runs or stores, or none, to clean the current folder.",
        )
    found = [_look_at(path) for path in leftovers(flags.path, keep_caches=flags.keep_caches)]
    if flags.yes:
        for item in found:
            remove(item.path)
    facts = {"removed": flags.yes, "leftovers": found}
    flags.output.print_done(facts, _listing(found, is_removed=flags.yes))
    return 0


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A file or folder that can be removed.

    Attributes:
        path: its path.
        size_bytes: its total size.
        age_s: seconds since its last change or use.
        is_cache: a run that needs it computes or downloads it again.
    """

    path: Path
    size_bytes: int
    age_s: float
    is_cache: bool


def leftovers(root: Path, *, keep_caches: bool = False) -> Iterator[Path]:
    """Yield what can be removed in a folder; skips symbolic links and folders in use."""
    for folder_name, folders, files in os.walk(root):
        folder = Path(folder_name)
        if is_held(folder):
            folders.clear()
            continue
        for name in sorted([*folders, *files]):
            path = folder / name
            is_kept = _is_cache(path)
            is_leftover = is_kept or _is_left(path)
            if is_leftover and not (is_kept and keep_caches):
                yield path
            if name in folders and (is_leftover or _TEMPORARY.fullmatch(name)):
                folders.remove(name)
        folders.sort()


def is_held(folder: Path) -> bool:
    """Return True if the lock of a folder is held by a process."""
    lock = folder / "lock"
    if not lock.is_file():
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks: skip it
        return True
    return False


def _is_cache(path: Path) -> bool:
    """Return True for a cache that is not in use; a run that needs it makes it again."""
    is_copied = path.parent.name.endswith(_COPIES_SUFFIX) and is_copy(path)
    if is_copied or (is_cache(path) and is_idle(path)):
        return True
    is_features = _FEATURES_KEY.fullmatch(path.name) and (path / _FEATURES_FILE).is_file()
    return bool(is_features or is_left(path)) and not path.is_symlink()


def _is_left(path: Path) -> bool:
    """Return True for a file or folder left behind by interrupted work."""
    temporary = _TEMPORARY.fullmatch(path.name)
    if temporary:
        return not psutil.pid_exists(int(temporary["pid"]))
    if path.name.endswith(_PARTIAL_SUFFIX) and path.is_dir() and not path.is_symlink():
        return not is_held(path)
    if path.name == _WATCH_TEMPORARY:
        return _age_s(path) > _RENAMED_WITHIN_S
    return path.name in _LEFT_BY_RUNS and has_any(path.parent, JOB_MARKS)


def _look_at(path: Path) -> _Found:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    size_bytes = sum(file.lstat().st_size for file in files if not file.is_dir())
    return _Found(path=path, size_bytes=size_bytes, age_s=_age_s(path), is_cache=_is_cache(path))


def _age_s(path: Path) -> float:
    """Return the seconds since the last change of a file or folder; 0 if it no longer exists."""
    try:
        return max(0.0, time.time() - path.lstat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _age(seconds: float) -> str:
    """Return an age in its largest unit, such as `3 h`."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _listing(found: list[_Found], *, is_removed: bool) -> str:
    if not found:
        return "nothing to remove"
    lines = [
        f"{item.size_bytes / 1e6:10,.1f} MB  {_age(item.age_s):>6} old  {item.path}"
        f"{'  (cache)' if item.is_cache else ''}"
        for item in found
    ]
    total = sum(item.size_bytes for item in found) / 1e6
    last = "removed" if is_removed else "would be removed; --yes removes them"
    if not is_removed and any(item.is_cache for item in found):
        last += (
            "; --keep-caches keeps the caches, which runs would have to compute or download again"
        )
    return "\n".join([*lines, f"{total:10,.1f} MB  {last}"])

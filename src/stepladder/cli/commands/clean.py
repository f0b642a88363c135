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

# A save, a climb or a prepare in progress has a hidden name with the number of its process, or ends
# in .partial; see docs/store.md, docs/checkpoints.md and docs/run-folder.md.
_TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.(tmp|old)", re.ASCII)
_PARTIAL_SUFFIX = ".partial"
_COPIES_SUFFIX = ".pixels"
_FEATURES_KEY = re.compile(r"[0-9a-f]{64}")  # see docs/features.md
_FEATURES_FILE = "features.npy"
_LEFT_BY_RUNS = ("events.discarded.jsonl", "crash.txt")
# A script that is watched renames it at once; where it was killed in between, it stays.
_WATCH_TEMPORARY = ".watch.json.tmp"
_RENAMED_WITHIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Flags:
    """List what interrupted work left behind: half-written stores, saves, trials, discarded events.

    Caches are listed too: features, decoded copies of stores, written DataFrames, and files fetched
    from elsewhere. A run that wants them makes or fetches them again.
    Nothing that a running process holds is listed. Checkpoints, stores, results and what was found
    of a job or a watched script stay.

    Examples:
      stepladder clean runs             lists, and removes nothing
      stepladder clean runs --yes       removes what it lists
      stepladder clean --keep-caches    only what killed processes left
    """

    path: Positional[Path] = Path()
    """Folder to look in, and below."""
    yes: Switch = False
    """Remove what is listed."""
    keep_caches: Switch = False
    """Leave the caches out."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """List the leftovers, and remove them if told to."""
    flags = parse(Flags, argv, command="clean", default=Flags())
    if supported_place(flags.path) is not None:
        raise UsageError(
            "what lies in an object store is not cleaned from here",
            where=shown(flags.path),
            fix="Give the folder here that holds the cache, such as the one you work in: "
            "stepladder clean .",
        )
    if not flags.path.is_dir():
        raise DataError(
            "there is no such folder",
            where=str(flags.path),
            fix="Give a folder that holds runs or stores, such as runs; or none for this one.",
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
    """What may be removed.

    Attributes:
        path: of a file or folder.
        size_bytes: of all that is in it.
        age_s: since its last change or use.
        is_cache: whether a run that wants it makes or fetches it again.
    """

    path: Path
    size_bytes: int
    age_s: float
    is_cache: bool


def leftovers(root: Path, *, keep_caches: bool = False) -> Iterator[Path]:
    """Yield what may be removed under a folder; looks into no symbolic link and no held folder."""
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
    """Tell whether a process works in a folder, by its lock."""
    lock = folder / "lock"
    if not lock.is_file():
        return False
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks: leave it alone
        return True
    return False


def _is_cache(path: Path) -> bool:
    """Tell whether a run that wants this would make or fetch it again, and nobody uses it now."""
    is_copied = path.parent.name.endswith(_COPIES_SUFFIX) and is_copy(path)
    if is_copied or (is_cache(path) and is_idle(path)):
        return True
    is_features = _FEATURES_KEY.fullmatch(path.name) and (path / _FEATURES_FILE).is_file()
    return bool(is_features or is_left(path)) and not path.is_symlink()


def _is_left(path: Path) -> bool:
    """Tell whether this is what work that was interrupted left."""
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
    """Give the seconds since a file or folder changed; one that is gone meanwhile has none."""
    try:
        return max(0.0, time.time() - path.lstat().st_mtime)
    except FileNotFoundError:
        return 0.0


def _age(seconds: float) -> str:
    """Say how old something is, in its largest unit."""
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
        last += ", --keep-caches leaves caches, which runs would make or fetch again"
    return "\n".join([*lines, f"{total:10,.1f} MB  {last}"])

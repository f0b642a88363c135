"""`stepladder clean`."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
from tyro.conf import Positional

from stepladder.cli.parse import Output, Switch, Unprefixed, parse, write
from stepladder.data.manifest import is_copy
from stepladder.errors import DataError

_EXAMPLES = """
  stepladder clean runs             lists, and removes nothing
  stepladder clean runs --yes       removes what it lists
"""
# A save or a prepare in progress has a hidden name with the number of its process, or ends in
# .partial; see docs/store.md and docs/checkpoints.md.
_TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.(tmp|old)", re.ASCII)
_PARTIAL_SUFFIX = ".partial"
_COPIES_SUFFIX = ".pixels"
_LEFT_BY_RUNS = ("events.discarded.jsonl", "crash.txt")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """List what interrupted work left behind: half-written stores, saves, discarded events.

    Decoded copies of stores are listed too: a run that wants one makes it again. Nothing that a
    running process holds is listed. Checkpoints, stores and results stay.
    """

    path: Positional[Path] = Path()
    """Folder to look in, and below."""
    yes: Switch = False
    """Remove what is listed."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """List the leftovers, and remove them if told to."""
    flags = parse(Flags, argv, command="clean", examples=_EXAMPLES, default=Flags())
    if not flags.path.is_dir():
        raise DataError("there is no such folder", where=str(flags.path))
    found = [(path, _size_bytes(path)) for path in leftovers(flags.path)]
    if flags.yes:
        for path, _ in found:
            remove(path)
    if flags.output.json:
        rows = [{"path": str(path), "size_bytes": size} for path, size in found]
        write(json.dumps({"removed": flags.yes, "leftovers": rows}))
    elif not flags.output.quiet:
        write(_listing(found, is_removed=flags.yes))
    return 0


def leftovers(root: Path) -> Iterator[Path]:
    """Yield what may be removed under a folder; looks into no symbolic link and no held folder."""
    for folder_name, folders, files in os.walk(root):
        folder = Path(folder_name)
        if is_held(folder):
            folders.clear()
            continue
        for name in sorted([*folders, *files]):
            path = folder / name
            if _is_leftover(path):
                yield path
                if name in folders:
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


def remove(path: Path) -> None:
    """Remove a file, or a folder and what is in it; a symbolic link loses only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_leftover(path: Path) -> bool:
    temporary = _TEMPORARY.fullmatch(path.name)
    if temporary:
        return not psutil.pid_exists(int(temporary["pid"]))
    if path.name.endswith(_PARTIAL_SUFFIX) and path.is_dir() and not path.is_symlink():
        return not is_held(path)
    if path.parent.name.endswith(_COPIES_SUFFIX) and is_copy(path):
        return True
    is_run = (path.parent / "events.jsonl").is_file()
    return is_run and path.name in _LEFT_BY_RUNS


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())


def _listing(found: list[tuple[Path, int]], *, is_removed: bool) -> str:
    if not found:
        return "nothing to remove"
    lines = [f"{size / 1e6:10,.1f} MB  {path}" for path, size in found]
    total = sum(size for _, size in found) / 1e6
    last = "removed" if is_removed else "would be removed; --yes removes them"
    return "\n".join([*lines, f"{total:10,.1f} MB  {last}"])

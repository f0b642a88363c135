"""Leave out a folder among class folders that repeats them: `data/data/cat` beside `data/cat`."""

from __future__ import annotations

import filecmp
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.config.choices import ClassesFrom
from stepladder.data.sources.folders.patterns import escaped
from stepladder.data.sources.folders.reading import MIN_SHARED, FolderReading
from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import Folder, Skipped, printable
from stepladder.errors import UsageError

_MAX_WRAPPERS: Final = 8
_MAX_COMPARED: Final = 20  # pictures whose bytes are compared


def without_repeats(reading: FolderReading, folders: Sequence[Folder]) -> list[Folder]:
    """Return class folders, without those that contain the others again, with a warning.

    Raises:
        UsageError: if a folder contains folders of the same names, but other pictures.
    """
    is_told = reading.options.classes_from is ClassesFrom.TOP
    if is_told or len(folders) <= MIN_SHARED:
        return list(folders)
    return [one for one in folders if not _is_repeat(reading, one, folders)]


def _is_repeat(reading: FolderReading, folder: Folder, folders: Sequence[Folder]) -> bool:
    names = {one.name for one in folders if one is not folder}
    inside = _around(reading, folder, names)
    below = set(reading.names_below(inside))
    if folder.others or not below & names or reading.has_pictures(inside):
        return False
    files = list(replace(reading.walk, skipped=Skipped()).files(inside))
    above = folder.path.rpartition("/")[0]
    root = Path(reading.walk.root)
    pairs = [(root / file, root / above / file[len(inside.path) + 1 :]) for file in files]
    num_same = sum(map(_same_size, pairs))
    step = max(1, len(pairs) // _MAX_COMPARED)
    if files and num_same == len(files) and all(map(_same_bytes, pairs[::step])):
        reading.warnings.append(
            f"{reading.root}: left out {printable(inside.path)}, whose {len(files)} pictures are "
            "in the folders beside it, too (the same names and sizes). If it is a class of its "
            "own, add --classes-from top --overwrite to the command"
        )
        return True
    if len(below & names) >= MIN_SHARED and (below <= names or names <= below):
        raise _refused(reading, folder, inside, sorted(below & names), (num_same, len(files)))
    return False


def _around(reading: FolderReading, folder: Folder, names: Collection[str]) -> Folder:
    """Return the folder itself, or the one inside single folders that has some of the names."""
    inside = folder
    for _ in range(_MAX_WRAPPERS):
        entries = reading.entries(inside)
        only = entries[0] if len(entries) == 1 else None
        if not isinstance(only, Folder) or only.name in names:
            break
        inside = only
    return inside


def _refused(
    reading: FolderReading,
    folder: Folder,
    inside: Folder,
    shared: list[str],
    counts: tuple[int, int],
) -> UsageError:
    num_same, num_files = counts
    depth = folder.path.count("/")
    others = f"^{'[^/]+/' * depth}(?!{escaped(folder.name)}/)([^/]+)/"
    place = "it" if inside is folder else printable(folder.name)
    return UsageError(
        f"the folder {printable(inside.path)} contains folders of the same names as those beside "
        f"{place} ({name_some(shared)}), so it is probably another version of them",
        where=str(reading.root),
        why=f"{num_same} of its {num_files} pictures are in these, too, with the same name and "
        "size. A picture that is in both would be in two classes. If it is a class of its own: "
        "--classes-from top",
        fix=f"To read {printable(inside.path)} only: stepladder prepare "
        f"{typed(reading.root / inside.path)}. To read those beside it only: stepladder prepare "
        f"{typed(reading.root)} --label-pattern {shlex.quote(others)}",
    )


def _same_size(pair: tuple[Path, Path]) -> bool:
    try:
        return pair[0].stat().st_size == pair[1].stat().st_size
    except OSError:
        return False


def _same_bytes(pair: tuple[Path, Path]) -> bool:
    try:
        return filecmp.cmp(*pair, shallow=False)
    except OSError:
        return False

"""List the pictures of class folders, which may be inside folders of letters."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from stepladder.config.choices import ClassesFrom, Split
from stepladder.data.sources.folders.patterns import start_of
from stepladder.data.sources.folders.reading import MIN_SHARED, FolderReading
from stepladder.data.sources.folders.repeats import without_repeats
from stepladder.data.sources.labels.no_classes import refuse_one_folder
from stepladder.data.sources.listing import Picture, name_some
from stepladder.data.sources.not_read.archives import archives_refused
from stepladder.data.sources.not_read.data_files import data_files_refused
from stepladder.data.sources.not_read.not_here import remedy
from stepladder.data.sources.walk import OUTSIDE, Folder, Skipped, printable
from stepladder.errors import DataError

_OF_LETTERS: Final = re.compile(r"([^\W\d_])(?: ?- ?([^\W\d_]))?|0-9|#")
_IN_LETTERS: Final = "(?:^|/)[^/](?:-[^/])?/(.+)/[^/]+$"


def list_classes(
    reading: FolderReading, folders: list[Folder], *, split: Split | None
) -> list[Picture]:
    """List the pictures of class folders.

    Args:
        reading: the source's folders.
        folders: those of classes, or of letters around them.
        split: that of all pictures, if it is known.

    Raises:
        DataError: if a class of train has no pictures.
    """
    pictures: list[Picture] = []
    full: list[Folder] = []
    empty: list[Folder] = []
    folders = without_repeats(reading, folders)
    num_warnings = len(reading.warnings)
    named = _named_classes(reading, folders)
    is_told = len(reading.warnings) > num_warnings
    for folder, name in named:
        label = printable(name)
        num_before = len(pictures)
        pictures += (Picture(path, label, split) for path in reading.walk.files(folder))
        if len(pictures) == num_before:
            empty.append(folder)
        else:
            full.append(folder)
            if not is_told:
                _note_nested(reading, folder, [one.path for one in pictures[num_before:]])
    if empty and split in {None, Split.TRAIN}:
        skipped = reading.walk.skipped
        fix = "Put pictures into these folders, or remove the folders."
        how = remedy(skipped, reading.root)
        if not how and not pictures:
            refused = archives_refused(reading.root) or data_files_refused(reading.root)
            if refused is not None:
                raise refused
        if not how and len(full) == 1:
            paths = [one.path for one in pictures]
            refuse_one_folder(reading.walk, reading.root, full[0].name, paths)
        fix = how or fix
        if len(full) == 1 and len(reading.names_below(full[0])) >= MIN_SHARED:
            fix = "Remove these folders; or, if the classes are in the folder beside them, "
            fix += f"use --source {reading.root / full[0].path}"
        raise _empty(reading, empty, fix)
    return pictures


def _empty(reading: FolderReading, folders: list[Folder], fix: str) -> DataError:
    """Return the error for class folders without pictures, with all that was skipped."""
    names = name_some([folder.path for folder in folders])
    what = f"these class folders contain no pictures that can be read: {names}"
    skipped = reading.walk.skipped
    if all(OUTSIDE in _skipped_in(reading, folder).counts for folder in folders):
        what = f"the pictures in these class folders are links out of the source: {names}"
        skipped = _skipped_in(reading, reading.walk.start())
    return DataError(
        what,
        where=reading.walk.root,
        why=f"Skipped: {skipped.describe()}" if skipped.counts else None,
        fix=fix,
    )


def _skipped_in(reading: FolderReading, folder: Folder) -> Skipped:
    """Return what is skipped in a folder."""
    walk = replace(reading.walk, skipped=Skipped())
    deque(walk.files(folder), maxlen=0)
    return walk.skipped


def nested_warning(reading: FolderReading, *, can_group: bool) -> str:
    """Return the warning that class folders contain folders that may be the classes.

    Args:
        can_group: whether val is drawn, so that groups of pictures can be kept together.
    """
    classes = sorted({printable(folder.name) for folder in reading.nested})
    leaves = sorted(
        {
            printable(f"{folder.name}/{inner}".rstrip("/"))
            for folder, inside in reading.nested.items()
            for inner in inside
        }
    )
    start = start_of(folder.path for folder in reading.nested)
    pattern = shlex.quote(f"{start}(.+)/[^/]+$")
    has_own = any("" in inside for inside in reading.nested.values())
    verb = "is a class" if len(classes) == 1 else "are classes"
    told = (
        f"{reading.root}: {name_some(classes)} {verb} with pictures in {len(leaves)} folders: "
        f"{name_some(leaves)}. If each of these folders is a class, add --label-pattern {pattern} "
        "--overwrite to the command"
    )
    if has_own or not can_group:
        return told
    return (
        f"{told}; if each is a scene or a person, add --group-by folder --overwrite to the command"
    )


def _note_nested(reading: FolderReading, folder: Folder, paths: Iterable[str]) -> None:
    """Note a class folder whose pictures are in several folders, unless the user knows of them."""
    options = reading.options
    if options.classes_from is ClassesFrom.TOP or options.is_grouped:
        return
    starts = [one.path for one in _parts(folder)]
    inside = set()
    for path in paths:
        start = next(start for start in starts if path.startswith(f"{start}/"))
        inside.add(path[len(start) + 1 :].rpartition("/")[0])
    if len(inside) > 1:
        reading.nested[folder] = sorted(inside)


def _parts(folder: Folder) -> Iterator[Folder]:
    """Yield the folder and all that are read as parts of it."""
    yield folder
    for other in folder.others:
        yield from _parts(other)


def _named_classes(reading: FolderReading, folders: list[Folder]) -> list[tuple[Folder, str]]:
    """Return the folders of classes and their names; those in folders of letters are deeper."""
    is_told = reading.options.classes_from is ClassesFrom.TOP
    inside = {folder: reading.entries(folder) for folder in folders if _letters(folder.name)}
    if is_told or not folders or len(inside) < len(folders):
        return [(folder, folder.name) for folder in folders]
    below = {
        folder: [entry for entry in entries if isinstance(entry, Folder)]
        for folder, entries in inside.items()
    }
    if any(len(below[folder]) < max(len(entries), 1) for folder, entries in inside.items()):
        return [(folder, folder.name) for folder in folders]
    names = name_some([folder.path for folder in folders])
    if not all(_begins(one.name, folder.name) for folder in folders for one in below[folder]):
        reading.warnings.append(
            f"{reading.root}: took {names} for classes, although they contain folders, not "
            "pictures. If those are the classes: --label-pattern "
            f"{shlex.quote(_IN_LETTERS)}"
        )
        return [(folder, folder.name) for folder in folders]
    reading.warnings.append(
        f"{reading.root}: read the folders in {names} as classes, because their names begin with "
        "these letters. If the letters are the classes: --classes-from top"
    )
    return [
        (deep, deep.path.removeprefix(f"{folder.path}/"))
        for folder in folders
        for one in below[folder]
        for deep in _with_pictures(reading, one)
    ]


def _with_pictures(reading: FolderReading, folder: Folder) -> list[Folder]:
    """Return the folder if pictures are in it, else those folders below it that have some."""
    entries = reading.entries(folder)
    inner = [entry for entry in entries if isinstance(entry, Folder)]
    if len(inner) < len(entries) or not inner:
        return [folder]
    return [deep for one in inner for deep in _with_pictures(reading, one)]


def _letters(name: str) -> tuple[str, str] | None:
    """Return the first and the last letter of `a` or `a-c`; None if a name is another."""
    match = _OF_LETTERS.fullmatch(name.lower())
    return None if match is None else (match[1] or "0", match[2] or match[1] or "9")


def _begins(name: str, letters: str) -> bool:
    """Return whether a name begins with a letter of a folder of letters; others do with none."""
    first, last = _letters(letters) or ("", "")
    start = name.lower()[:1]
    return first <= start <= last or not start.isalpha()

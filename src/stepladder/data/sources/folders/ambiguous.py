"""Refuse folders that can be read in two ways: as classes, as splits, or as versions."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.folders.patterns import start_of
from stepladder.data.sources.folders.reading import MIN_SHARED, FolderReading
from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.split_names import (
    SPLIT_NAMES,
    assign_splits,
    split_candidates,
    write_split_folders,
)
from stepladder.data.sources.walk import Folder, Skipped
from stepladder.errors import UsageError

_MAX_COMPARED: Final = 2000  # pictures of a folder whose names are compared with those in another
_MAX_PROBES: Final = 50
_MIN_SAME: Final = 2
_MAX_ASKED: Final = 8  # folders in a flag that a message proposes
_MIN_NEAR: Final = 0.85
_YEAR: Final = re.compile(r"(19|20)[0-9]{2}")
_COUNTED: Final = re.compile(r"[^\W\d_]{0,8}[ _-]*[0-9]*[ _]*(\([0-9]+\))?")


def refuse_crossing(
    reading: FolderReading, folders: list[Folder], below: Mapping[Folder, list[str]]
) -> None:
    """Refuse folders that share subfolders: either of them may be the classes.

    Raises:
        UsageError: if two folders share two subfolders, or one that is named after a split
            shares one with a folder that is probably misspelled.
    """
    counts = Counter(name for inside in below.values() for name in set(inside))
    shared = {name for name, count in counts.items() if count > 1}
    if any(len(shared & set(inside)) >= MIN_SHARED for inside in below.values()):
        raise ambiguous(reading, folders, shared, below)
    wrapped = {folder: reading.names_below(reading.unwrap(folder)) for folder in folders}
    wrappers = {tuple(names) for names in below.values()}
    if len(folders) > 1 and len(wrappers) == 1 and len(wrappers.pop()) == 1:
        counts = Counter(name for inside in wrapped.values() for name in set(inside))
        shared = {name for name, count in counts.items() if count > 1}
        if len(shared) >= MIN_SHARED:
            raise ambiguous(reading, folders, shared, wrapped)
    named = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
    beside = {name for folder in named for name in below[folder]}
    for folder in folders:
        is_near = _near_split(folder.name)
        if folder not in named and is_near and beside & set(below[folder]):
            raise ambiguous(reading, folders, shared, below)


def refuse_versions_with_splits(reading: FolderReading, folders: list[Folder]) -> None:
    """Refuse `color/train/cat` and `gray/train/cat`: the outer folders are no classes.

    Raises:
        UsageError: if the folders of splits inside them share two class folders.
    """
    inside = {
        folder: {name for one in reading.inner_folders(folder) for name in reading.names_below(one)}
        for folder in folders
    }
    counts = Counter(name for names in inside.values() for name in names)
    shared = sorted(name for name, count in counts.items() if count > 1)
    if len(shared) >= MIN_SHARED:
        both = [folder for folder in folders if inside[folder] & set(shared)]
        raise _versions(reading, both, shared, "one level deeper ")


def ambiguous(
    reading: FolderReading,
    folders: list[Folder],
    shared: Iterable[str],
    below: Mapping[Folder, list[str]],
) -> UsageError:
    """Return an error for folders that share subfolders, so that either may be the classes.

    Args:
        reading: the source's folders.
        folders: the outer ones.
        shared: names of subfolders that several of them have.
        below: names of the subfolders of each.
    """
    both = [folder for folder in folders if set(shared) & set(below[folder])]
    has_splits = any(split_candidates(one.name) or _near_split(one.name) for one in both)
    if not has_splits and _have_same_names(reading, both, shared, counted=False):
        return _versions(reading, both, sorted(shared))
    outer = [folder.name for folder in both]
    inner = sorted({name for folder in both for name in below[folder]})
    likely = sorted(
        (names for names in (inner, outer) if _may_be_splits(names)),
        key=lambda names: not _are_numbered_or_splits(names),
    )
    flag = "--split-folders FOLDER=train,FOLDER=test"
    if likely and len(likely[0]) <= _MAX_ASKED:
        flag = write_split_folders(_guessed(likely[0]))
    as_splits = f"If one level is train, val and test: {flag} (correct the names)."
    as_classes = [f"If {name_some(outer)} are the classes: --classes-from top"]
    if not any(map(split_candidates, (*outer, *inner))) and all(
        set(below[folder]) <= set(reading.names_in(folder)) for folder in both
    ):
        start = start_of(folder.path for folder in folders)
        label_in, group_in = f"{start}[^/]+/([^/]+)/", f"{start}([^/]+)/"
        as_classes.append(
            f"If {name_some(inner)} are the classes, and {name_some(outer)} are for example "
            "patients, whose pictures must not be both in train and in val: "
            f"stepladder prepare {typed(reading.root)} --label-pattern {shlex.quote(label_in)} "
            f"--group-by {shlex.quote(group_in)}"
        )
        if (_are_numbered(outer), len(outer)) > (_are_numbered(inner), len(inner)):
            as_classes.reverse()
    fixes = [as_splits, *as_classes] if likely else [*as_classes, as_splits]
    if not likely and _have_same_names(reading, both, shared, counted=True):
        one = f"To read one of them: stepladder prepare {typed(reading.root / both[0].path)}"
        fixes = [one, *as_classes]
    return UsageError(
        f"the folders {name_some(outer)} contain folders of the same names "
        f"({name_some(sorted(shared))}), so it is unknown which of both are the classes",
        where=str(reading.root),
        fix=". ".join(fix.rstrip(".") for fix in fixes),
    )


def _versions(
    reading: FolderReading, folders: list[Folder], shared: list[str], deeper: str = ""
) -> UsageError:
    names = name_some([folder.path for folder in folders])
    return UsageError(
        f"the folders {names} contain {deeper}folders of the same names ({name_some(shared)}), "
        "so they are probably versions of one data set",
        where=str(reading.root),
        why="Pictures that are in several of them would be in train and in val or test.",
        fix=f"Read one of them: stepladder prepare {typed(reading.root / folders[0].path)}. If "
        f"{names} are the classes: --classes-from top",
    )


def _have_same_names(
    reading: FolderReading, folders: list[Folder], shared: Iterable[str], counted: bool
) -> bool:
    """Return whether most pictures of a class have the same name in another folder, too.

    A name may have an end of its own: `leaf_1_masked` for `leaf_1`.

    Args:
        folders: versions or splits.
        shared: names of the classes in them.
        counted: whether names such as `IMG_0001` count, which any camera writes.
    """
    names: list[set[str]] = []
    for folder in folders:
        inside = [one for one in reading.inner_folders(folder) if one.name in set(shared)]
        walk = replace(reading.walk, skipped=Skipped())
        files = islice((file for one in inside for file in walk.files(one)), _MAX_COMPARED)
        stems = {file[len(folder.path) + 1 :].rpartition(".")[0] for file in files}
        names.append(
            {one for one in stems if counted or not _COUNTED.fullmatch(one.rpartition("/")[2])}
        )
    first, *others = sorted(names, key=len)
    probes = sorted(first)[:_MAX_PROBES]
    num_found = sum(
        any(one in other or any(_is_version(one, name) for name in other) for other in others)
        for one in probes
    )
    return num_found >= _MIN_SAME and 2 * num_found > len(probes)


def _is_version(name: str, other: str) -> bool:
    """Return whether one of two names is the other with an end: `leaf_1_masked`, `leaf_1-small`."""
    short, long = sorted((name, other), key=len)
    return long.startswith(short) and not long[len(short) : len(short) + 1].isdigit()


def _may_be_splits(names: list[str]) -> bool:
    """Return whether the names are numbered, as folds or years, or one resembles a split's."""
    are_years = all(map(_YEAR.fullmatch, names))
    return are_years or _are_numbered_or_splits(names) or any(map(_near_split, names))


def _are_numbered_or_splits(names: list[str]) -> bool:
    """Return whether names are more than similar to a split's: fold_0 and fold_1, or seg_train."""
    is_of_numbers = all(map(str.isdigit, names))  # of patients or classes
    return (_are_numbered(names) and not is_of_numbers) or any(map(split_candidates, names))


def _are_numbered(names: list[str]) -> bool:
    """Return whether names differ only by a number at the end, or are numbers."""
    prefixes = {name.rstrip("0123456789") for name in names}
    return len(names) > 1 and len(prefixes) == 1 and prefixes.pop() not in names


def _near_split(name: str) -> list[str]:
    """Return the name of a split that was probably mistyped, such as `trian`."""
    word = name.lower()
    swapped = [split for split in SPLIT_NAMES if sorted(split) == sorted(word)]
    near = difflib.get_close_matches(word, SPLIT_NAMES, n=1, cutoff=_MIN_NEAR)
    return swapped or [split for split in near if split[0] == word[0]]


def _guessed(names: list[str]) -> dict[str, Split]:
    """Guess splits for a proposal: by similar names, else train, and the last one test."""
    found = assign_splits(names)
    for name in names:
        near = _near_split(name)
        if name not in found and near:
            found[name] = SPLIT_NAMES[near[0]]
    others = [name for name in names if name not in found]
    found |= dict.fromkeys(others, Split.TRAIN)
    if others and set(found.values()) == {Split.TRAIN}:
        found[others[-1]] = Split.TEST
    return {name: found[name] for name in names}

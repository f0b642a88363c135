"""Refuse folders that are not classes, and report where the classes are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.labels.labels_elsewhere import (
    Elsewhere,
    find_in_names,
    find_labels,
    find_table,
    has_table,
    typed,
    without_masks,
)
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.not_read.archives import archives_refused, packed_folders, unpack
from stepladder.data.sources.not_read.arrays import arrays_refused
from stepladder.data.sources.not_read.data_files import data_files_refused
from stepladder.data.sources.not_read.not_here import remedy
from stepladder.data.sources.splits.split_names import (
    assign_splits,
    is_of_files,
    named_as_splits,
    write_split_folders,
)
from stepladder.data.sources.walk import (
    LOOSE,
    OF_ANNEX,
    OF_DVC,
    OUTSIDE,
    Folder,
    Skipped,
    Walk,
    is_hidden,
    why_no_picture,
)
from stepladder.errors import DataError, UsageError

_TOP: Final = "If these folders are the classes: --classes-from top"
_HOW: Final = (
    "Put the pictures of each class into a folder of their own, or list all pictures in a CSV "
    "file with the columns path and label, and set --source to it."
)
_MIN_CLASSES: Final = 2
_MAX_FOLDERS: Final = 1000  # beside a folder, checked for pictures
_MAX_ENTRIES: Final = 20


def no_class_folders(walk: Walk, root: Path) -> DataError:
    """Return the error for a folder without class folders."""
    skipped = walk.skipped
    paths = list(_silent(walk).files(walk.start()))
    of_arrays = None if paths else skipped.place_of_arrays()
    if of_arrays is not None and (refused := arrays_refused(root / of_arrays)) is not None:
        return refused
    if not paths and not remedy(skipped, root):
        found = archives_refused(root) or data_files_refused(root)
        if found is not None:
            return found
    elsewhere = find_labels(root, paths) if paths else None
    why = f"Skipped: {skipped.describe()}" if skipped.counts else None
    fix = "In it, create one folder for each class, with the pictures of the class."
    if how := remedy(skipped, root) if not paths or OUTSIDE in skipped.counts else None:
        fix = how
    if elsewhere is not None:
        why, fix = elsewhere.where, elsewhere.fix
    elif paths and all("/" not in path for path in paths) and _has_classes(root.parent):
        fix = f"If {root.name} is one of several classes, read the folder above it: stepladder "
        fix += f"prepare {typed(root.parent)}"
    return DataError(
        "this folder contains no class folders with pictures", where=str(root), why=why, fix=fix
    )


def refuse_one_folder(walk: Walk, root: Path, label: str, paths: Sequence[str]) -> None:
    """Refuse a single class folder if the labels, or pictures of other classes, are elsewhere.

    Args:
        walk: the walk of the source.
        root: the source.
        label: the name of the folder.
        paths: the pictures in it.

    Raises:
        DataError: if they are.
    """
    skipped = walk.skipped
    if skipped.counts.keys() & {OUTSIDE, OF_ANNEX, OF_DVC}:
        raise DataError(
            f"only one class folder has pictures that can be read, {label!r}, but a classifier "
            "needs two classes",
            where=str(root),
            why=f"Skipped: {skipped.describe()}",
            fix=remedy(skipped, root),
        )
    packed = packed_folders(root, {name for path in paths for name in path.split("/")[:-1]})
    if packed:
        raise DataError(
            f"only the class folder {label!r} is unpacked, but a classifier needs two classes",
            where=str(root),
            why=f"Pictures are in archives: {name_some([one.name for one in packed])}",
            fix=f"Unpack them: {unpack(packed)} && stepladder prepare {typed(root)}",
        )
    elsewhere = find_labels(root, paths, list(_silent(walk).files(walk.start())))
    if elsewhere is not None and label not in elsewhere.labels:
        raise DataError(
            f"the source has only one class folder, {label!r}, but a classifier needs two classes",
            where=str(root),
            why=elsewhere.where,
            fix=elsewhere.fix,
        )


def refuse_splits_without_classes(
    walk: Walk, root: Path, folders: Sequence[Folder], flat: Mapping[Folder, Folder]
) -> None:
    """Refuse folders that are named as splits and contain pictures, but no class folders.

    Args:
        walk: the walk of the source.
        root: the source.
        folders: those at the top.
        flat: of those named as splits without class folders, the folder in each with its pictures.

    Raises:
        UsageError: if there are such folders, whose names would be the classes.
    """
    walk = _silent(walk)
    full = [folder for folder in folders if next(walk.files(folder), None) is not None]
    names = named_as_splits(folder.name for folder in full)
    named = [folder for folder in full if folder.name in names]
    if not named or any(folder not in flat for folder in named):
        return
    splits = assign_splits(names)
    inside = {folder: list(walk.files(flat[folder])) for folder in named}
    train = [path for one in named for path in inside[one] if splits[one.name] == "train"]
    every = [path for some in inside.values() for path in some]
    paths = train or every
    elsewhere = find_labels(root, paths, every)
    verb = (
        "is named as a split, but contains"
        if len(names) == 1
        else "are named as splits, but contain"
    )
    raise UsageError(
        f"{'the folder' if len(names) == 1 else 'the folders'} {name_some(names)} {verb} pictures "
        "instead of one folder for each class",
        where=str(root),
        why=f"{elsewhere.where} {_TOP}"
        if elsewhere
        else f"They contain files such as {name_some(paths[:1])}. {_TOP}",
        fix=elsewhere.fix if elsewhere else _HOW,
    )


def refuse_names_of_splits(root: Path, names: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse class folders that are all named as splits.

    Args:
        root: the source.
        names: of the folders.
        classes: paths of those that have class folders, relative to the source.

    Raises:
        UsageError: if they are.
    """
    if not names or set(named_as_splits(names)) != set(names):
        return
    splits = assign_splits(names)
    fixes = [
        f"To read only the pictures in {path}: stepladder prepare {typed(root / path)}"
        for path in classes
    ]
    if Split.TRAIN in splits.values():
        fixes.insert(0, f"If these are splits: {write_split_folders(splits)}")
    raise UsageError(
        "all folders are named as splits, so it is unknown which are classes: "
        + name_some([*names]),
        where=str(root),
        fix="\n".join([*fixes, _TOP]),
    )


def refuse_folders_of_a_table(walk: Walk, root: Path, folders: Sequence[Folder]) -> None:
    """Refuse folders named as pictures (`images`) or by numbers, if a table has their labels.

    Folders with other names are refused if a column of labels has others for nearly all pictures.

    Raises:
        UsageError: if there is such a table.
    """
    names = [folder.name for folder in folders]
    are_numbered = len({re.sub(r"[0-9]+", "", name) for name in names}) < len(names)
    may_be_files = are_numbered or any(map(is_of_files, names))
    if not may_be_files and not has_table(root):
        return
    paths = list(_files(_silent(walk), folders))
    elsewhere = find_table(root, paths) or _beside_masks(root, paths)
    is_other = elsewhere is not None and not elsewhere.are_folders
    if elsewhere is not None and not (may_be_files or elsewhere.is_sure):
        return
    if elsewhere is not None and is_other and not elsewhere.labels & set(names):
        raise UsageError(
            f"the folders {name_some(names)} are probably not classes, because "
            + (
                "the names of the pictures contain classes"
                if elsewhere.is_in_names
                else "a table has labels for the pictures in them"
            ),
            where=str(root),
            why=f"{_TOP}. {elsewhere.where}",  # which may end in a command
            fix=elsewhere.fix,
        )


def refuse_loose_pictures(walk: Walk, root: Path, labels: Set[str]) -> None:
    """Refuse class folders with pictures beside them, if lists have other labels for both.

    So are the folders of MMPretrain: `train/1.png`, `train/folder_1/2.png` and `meta/train.txt`.

    Args:
        walk: the walk of the source.
        root: the source.
        labels: the names of the class folders.

    Raises:
        UsageError: if there are such lists.
    """
    if LOOSE not in walk.skipped.counts:
        return
    paths = list(_silent(walk).files(walk.start()))
    elsewhere = find_table(root, paths, paths)
    if elsewhere is None or elsewhere.are_folders or elsewhere.labels & labels:
        return
    raise UsageError(
        f"the folders {name_some(sorted(labels))} are probably not classes, because there are "
        "pictures beside them, and a table has labels for these, too",
        where=str(root),
        why=f"If they are the classes, move the pictures beside them. {elsewhere.where}",
        fix=elsewhere.fix,
    )


def _beside_masks(root: Path, paths: Sequence[str]) -> Elsewhere | None:
    """Return the labels in the names of pictures that have masks in other folders."""
    pictures = without_masks(paths)
    is_one = len({path.partition("/")[0] for path in pictures}) == 1
    return find_in_names(root, paths) if is_one and len(pictures) < len(paths) else None


def _files(walk: Walk, folders: Sequence[Folder]) -> Iterator[str]:
    for folder in folders:
        yield from walk.files(folder)


def _silent(walk: Walk) -> Walk:
    """Return the same walk, which does not record what it skips."""
    return replace(walk, skipped=Skipped())


def _has_classes(folder: Path) -> bool:
    """Return True if at least two of the folders in a folder contain pictures."""
    try:
        beside = [one for one in islice(folder.iterdir(), _MAX_FOLDERS) if one.is_dir()]
        num_full = sum(
            any(
                bool(file.suffix) and why_no_picture(file.name) is None
                for file in islice(one.iterdir(), _MAX_ENTRIES)
            )
            for one in beside
            if not is_hidden(one.name)
        )
    except OSError:
        return False
    return num_full >= _MIN_CLASSES

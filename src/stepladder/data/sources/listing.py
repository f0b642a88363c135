"""List the pictures of a source (paths, labels, splits, groups) without opening them."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.csv_table import read_table
from stepladder.data.sources.walk import Folder, Skipped, Walk, printable
from stepladder.errors import DataError, UsageError

SPLIT_NAMES = {
    "train": Split.TRAIN,
    "val": Split.VAL,
    "valid": Split.VAL,
    "validation": Split.VAL,
    "test": Split.TEST,
}
SPLIT_WORDS = {
    **SPLIT_NAMES,
    "training": Split.TRAIN,
    "dev": Split.VAL,
    "testing": Split.TEST,
}
"""Split names in file and folder names of tables; `dev` may be a class in a folder of pictures."""
_MAX_NAMED = 10
_MAX_SPLIT_FOLDERS = 3


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a listing.

    Attributes:
        path: path relative to the source's folder, with "/" as separator; bytes that are not valid
            UTF-8 are surrogates, as in `os.fsdecode`.
        label: class name.
        split: split given by the source, or None.
        group: value of the CSV's group column, or None.
    """

    path: str
    label: str
    split: Split | None
    group: str | None = None


@dataclass(frozen=True)
class Listing:
    """The contents of a source.

    Attributes:
        root: folder that the pictures' paths are relative to, resolved.
        pictures: sorted by path within each class of a folder, or in the order of a CSV.
        skipped: skipped files and the reasons.
        warnings: warnings for the user.
        has_group_column: whether `group` was read from a column.
        origin: resolved values of options that the config left open, such as delta_version.
    """

    root: Path
    pictures: list[Picture]
    skipped: Skipped
    warnings: tuple[str, ...] = ()
    has_group_column: bool = False
    origin: dict[str, Any] = field(default_factory=dict)

    @property
    def has_drawn_val(self) -> bool:
        """Whether no picture is assigned to val, so that val is drawn."""
        return all(picture.split is not Split.VAL for picture in self.pictures)

    def file(self, picture: Picture) -> str:
        """Return the path to open."""
        return os.path.join(self.root, picture.path)  # noqa: PTH118 (called a million times)


def list_pictures(config: PrepareConfig) -> Listing:
    """List a folder of class folders, a folder of train/val/test folders, or a CSV.

    Raises:
        UsageError: if the source is missing or ambiguous.
        DataError: if it has no pictures, an empty class, a single class, or a bad table.
    """
    source = config.source.expanduser()
    if source.is_dir():
        root = source.resolve()
        listing = list_walk(Walk(str(root), config.follow_symlinks, Skipped()), root)
    elif source.is_file():
        listing = _list_table(source, config)
    else:
        raise UsageError(
            "does not exist" if not source.exists() else "neither a folder nor a file",
            where=str(source),
            fix=_did_you_mean(source)
            + "Set --source to a folder of class folders (optionally inside train/val/test), a CSV "
            "with the columns path and label, a Delta table, or Parquet, .tar or .tar.gz files "
            "(one file, a folder or a pattern).",
        )
    require_classes(listing, str(source))
    return listing


def _did_you_mean(source: Path) -> str:
    """Suggest an existing path with a similar name in the same folder."""
    try:
        names = [path.name for path in source.parent.iterdir()]
    except OSError:
        return ""
    near = difflib.get_close_matches(source.name, names, n=1)
    return f"Did you mean {source.with_name(near[0])}? " if near else ""


def require_classes(listing: Listing, source: str) -> None:
    """Check that there are at least two classes.

    Raises:
        DataError: if there is only one.
    """
    classes = {picture.label for picture in listing.pictures}
    if len(classes) == 1:
        raise DataError(
            f"only one class, {printable(classes.pop())!r}",
            where=source,
            why="A classifier needs at least two classes.",
            fix="Put the pictures of each class in their own folder; in a table, set the label of "
            "each row to its class.",
        )


def name_some(names: list[str]) -> str:
    """Join at most ten names for a message."""
    shown = ", ".join(printable(name) for name in names[:_MAX_NAMED])
    return shown + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


def list_walk(walk: Walk, root: Path) -> Listing:
    """List class folders, or class folders inside train/val/test folders.

    Raises:
        UsageError: if two folders name the same split.
        DataError: if there are no pictures, a class is empty, or there is no train folder.
    """
    skipped = walk.skipped
    folders = _subfolders(walk, walk.start())
    warnings: list[str] = []
    pictures: list[Picture] = []
    splits = _splits_of(folders, root)
    if splits is None:
        _check_no_split_misspelt(walk, folders, root)
        pictures = _list_classes(walk, folders, split=None)
    else:
        others = [folder.path for folder in folders if folder not in splits]
        if others:
            warnings.append(f"{root}: skipped folders that are not splits: {name_some(others)}")
        for folder, split in splits.items():
            pictures += _list_classes(walk, _subfolders(walk, folder), split=split)
    if not pictures:
        raise DataError(
            "no pictures in class folders",
            where=str(root),
            why=f"Skipped: {skipped.describe()}" if skipped.counts else None,
            fix="Create one folder per class, with JPEG or PNG files in it.",
        )
    if skipped.counts:
        warnings.append(f"{root}: skipped {skipped.describe()}")
    return Listing(root, pictures, skipped, tuple(warnings))


def _splits_of(folders: list[Folder], root: Path) -> dict[Folder, Split] | None:
    """Return the split of each folder; None if the folders are classes."""
    found = {folder: SPLIT_NAMES[folder.path.lower()] for folder in folders if _names_split(folder)}
    splits = set(found.values())
    if not found or (len(found) < len(folders) and (Split.TRAIN not in splits or len(splits) == 1)):
        return None  # "test" or "train" among other names is an ordinary class
    if len(found) > len(splits):
        raise UsageError(
            f"two folders for the same split: {name_some([folder.path for folder in found])}",
            where=str(root),
            fix="Keep one folder for each of train, val and test.",
        )
    if Split.TRAIN not in splits:
        raise DataError(
            f"there are folders for {', '.join(sorted(splits))} but none for train",
            where=str(root),
            fix=f"Rename the folder of training pictures to {root / 'train'}.",
        )
    return found


def _check_no_split_misspelt(walk: Walk, folders: list[Folder], root: Path) -> None:
    """Check that folders read as classes are not splits, one of them with a misspelled name.

    "train" and "tset" are two classes unless both contain folders with the same names.

    Raises:
        DataError: if a folder is probably a misspelled split.
    """
    named = [folder for folder in folders if _names_split(folder)]
    classes = {name for folder in named for name in _names_below(walk, folder)}
    for folder in folders:
        if folder in named or not classes & set(_names_below(walk, folder)):
            continue
        name = folder.path
        near = difflib.get_close_matches(name.lower(), SPLIT_NAMES, n=1, cutoff=0.6)
        if not near and len(folders) > _MAX_SPLIT_FOLDERS:
            continue
        meant = SPLIT_NAMES[near[0]] if near else Split.TEST
        raise DataError(
            f"{printable(named[0].path)!r} is a split name and {printable(name)!r} is not, but "
            "both contain the same class folders",
            where=str(root),
            why="Read as two classes, each would contain pictures of every class.",
            fix=f"Rename it to {root / meant.value}, or move it out of the source. If both are "
            "classes, use a CSV with the columns path and label.",
        )


def _names_below(walk: Walk, folder: Folder) -> list[str]:
    """Return the names of the subfolders, without recording skipped files."""
    found = replace(walk, skipped=Skipped()).entries(folder)
    return [entry.path.rpartition("/")[2] for entry in found if isinstance(entry, Folder)]


def _names_split(folder: Folder) -> bool:
    return folder.path.lower() in SPLIT_NAMES


def _subfolders(walk: Walk, folder: Folder) -> list[Folder]:
    folders: list[Folder] = []
    for entry in walk.entries(folder):
        if isinstance(entry, Folder):
            folders.append(entry)
        else:
            walk.skipped.add(entry, "picture(s) outside any class folder")
    return folders


def _list_classes(walk: Walk, folders: list[Folder], *, split: Split | None) -> list[Picture]:
    pictures: list[Picture] = []
    empty: list[str] = []
    for folder in folders:
        label = printable(folder.path.rpartition("/")[2])
        num_before = len(pictures)
        pictures += (Picture(path, label, split) for path in walk.files(folder))
        if len(pictures) == num_before:
            empty.append(folder.path)
    if empty and split in {None, Split.TRAIN}:
        raise DataError(
            f"class folders without pictures: {name_some(empty)}",
            where=walk.root,
            why=f"Skipped: {walk.skipped.describe()}" if walk.skipped.counts else None,
            fix="Put JPEG or PNG files in them, or remove them.",
        )
    return pictures


def _list_table(path: Path, config: PrepareConfig) -> Listing:
    """Read a CSV; relative picture paths are relative to its folder."""
    root = path.parent.resolve()
    table = read_table(
        path,
        path_column=config.path_column,
        label_column=config.label_column,
        split_column=config.split_column,
        group_column=config.group_by,
    )
    pictures: dict[str, Picture] = {}
    relative_to_root = _Relative(root)
    first_row: dict[str, int] = {}
    num_repeated = 0
    for row in table.rows:
        where = f"{path}: row {row.number}"
        split = None if row.split is None else split_of_cell(row.split, where)
        relative = relative_to_root(row.path)
        picture = Picture(relative, row.label, split, row.group)
        if relative not in pictures:
            pictures[relative] = picture
            first_row[relative] = row.number
        elif pictures[relative] == picture:
            num_repeated += 1
        else:
            raise DataError(
                f"rows {first_row[relative]} and {row.number} have different labels, splits or "
                f"groups for {row.path!r}",
                where=str(path),
                fix="Keep one row for each picture.",
            )
    warnings = (f"{path}: skipped {num_repeated} repeated rows",) if num_repeated else ()
    return Listing(root, list(pictures.values()), Skipped(), warnings, table.has_group)


def split_of_cell(value: Any, where: str) -> Split:
    """Return the split in a cell of a table.

    Raises:
        DataError: if the value is not a split.
    """
    split = SPLIT_NAMES.get(str(value).strip().lower())
    if split is None:
        raise DataError(
            f"split {value!r:.40} is not train, val or test",
            where=where,
            fix="Set it to one of the three, or drop the column to draw val automatically. To use "
            "another column: --split-column NAME",
        )
    return split


class _Relative:
    """Makes paths relative to the CSV's folder: a store must not contain absolute paths."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: dict[str, str] = {}

    def __call__(self, cell: str) -> str:
        path = os.path.normpath(os.path.join(self._root, cell))  # noqa: PTH118 (twice as fast)
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.relpath(folder, self._root)
        return name if self._folders[folder] == "." else f"{self._folders[folder]}/{name}"

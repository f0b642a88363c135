"""Read folders with a table beside the pictures, as Hugging Face and Roboflow write them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.config.choices import ClassesFrom, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.label_tables.coco import (
    SeveralCategoriesError,
    is_coco_file,
    of_one_category,
)
from stepladder.data.sources.label_tables.csv_table import list_table
from stepladder.data.sources.label_tables.refusals import NoLabelsError
from stepladder.data.sources.listing import Listing, Note, Picture
from stepladder.data.sources.splits.split_names import assign_splits, named_as_splits
from stepladder.data.sources.walk import Skipped, is_hidden, printable
from stepladder.errors import DataError, StepladderError, UsageError

TABLES: Final = ("metadata.csv", "metadata.jsonl", "_classes.csv", "_annotations.coco.json")
"""Names of tables that a folder is read by."""
_MAX_FOLDERS: Final = 20  # a folder with more of them has classes
_MAX_JSON: Final = 10  # files in a folder; more of them are annotations of single pictures
_MAX_JSON_BYTES: Final = 1 << 28


def list_metadata(source: Path, config: PrepareConfig) -> Listing | None:
    """List the pictures of a folder by its table, or by one table in each folder of a split.

    Returns:
        None if there is no such table, if it has no labels, or if an option names the folders.

    Raises:
        UsageError: if a folder has two tables.
        DataError: if a table is invalid.
    """
    is_told = config.classes_from is not ClassesFrom.AUTO
    if is_told or config.split_folders is not None or config.label_pattern is not None:
        return None
    table = _table_in(source)
    try:
        if table is not None:
            return _with_splits_of_folders(_read(table, source, config))
        return _list_splits(source, config) or _list_coco(source, config)
    except NoLabelsError:  # as a table of captions
        return None


def _list_splits(source: Path, config: PrepareConfig) -> Listing | None:
    """List the folders of splits that have a table each."""
    names = sorted(one.name for one in source.iterdir() if one.is_dir() and not is_hidden(one.name))
    if len(names) > _MAX_FOLDERS:
        return None
    splits = assign_splits(named_as_splits(names))
    tables = {name: _table_in(source / name) for name in splits}
    if Split.TRAIN not in {splits[name] for name, table in tables.items() if table is not None}:
        return None
    root = source.resolve()
    pictures: list[Picture] = []
    warnings: list[str] = []
    has_group = False
    for name, table in tables.items():
        if table is None:
            warnings.append(f"{source / name}: skipped, as it has no table of labels")
            continue
        try:
            listing = _read(table, source, config)
        except SeveralCategoriesError as error:
            of_splits = [
                (one, f"{name}/", splits[name].value) for name, one in tables.items() if one
            ]
            fix = of_one_category(source / "one-category.csv", of_splits)
            raise DataError(error.what, where=error.where, why=error.why, fix=fix) from None
        above = os.path.relpath(listing.root, root)
        pictures += [
            replace(one, path=os.path.normpath(f"{above}/{one.path}"), split=splits[name])
            for one in listing.pictures
        ]
        warnings += listing.warnings
        has_group = has_group or listing.has_group_column
    return Listing(root, pictures, Skipped(), _merged(source, tables, warnings), has_group)


def _merged(source: Path, names: Iterable[str], warnings: Sequence[str]) -> tuple[str, ...]:
    """Join the warnings that are the same for the tables of several folders."""
    places: dict[tuple[type[str], str], list[str]] = {}
    for said in warnings:
        name = next((one for one in names if said.startswith(_starts(source / one))), "")
        start = f"{source / name}" if name else ""
        places.setdefault((type(said), said.removeprefix(start)), []).append(name)
    found = []
    for (kind, rest), some in places.items():
        where = f"{source}/{{{','.join(some)}}}" if len(some) > 1 else f"{source / some[0]}"
        found.append(kind(f"{where if some[0] else ''}{rest}"))
    return tuple(found)


def _list_coco(source: Path, config: PrepareConfig) -> Listing | None:
    """List the pictures of a folder, or of the only one in it, by COCO annotations beside them.

    Returns:
        None if no file or several have a category for each picture, or if pictures are in folders
        that may be classes.
    """
    folders, files = _entries(source)
    tables = [one for one in files if one.suffix.lower() == ".json"]
    if len(folders) > 1 or not 0 < len(tables) <= _MAX_JSON:
        return None
    pictures = [one for one in files if one.suffix.lower() in PICTURE_SUFFIXES]
    if folders and not pictures:
        folders, files = _entries(folders[0])
        pictures = [one for one in files if one.suffix.lower() in PICTURE_SUFFIXES]
    if folders or not pictures:
        return None
    found = [listing for table in tables if (listing := _coco(table, source, config)) is not None]
    if len(found) != 1:
        return None
    (listing,) = found
    listed = {(listing.root / one.path).resolve() for one in listing.pictures}
    others = [one for one in pictures if one.resolve() not in listed]
    if len(others) > len(pictures) // 2:
        return None
    if others:
        told = f"{source}: left out {len(others)} of {len(pictures)} pictures, which have no "
        told += f"category in the annotations, such as {printable(others[0].name)}"
        listing = replace(listing, warnings=(*listing.warnings, told))
    return _with_splits_of_folders(listing)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder."""
    with os.scandir(folder) as scan:
        entries = sorted((one.name, one.is_dir()) for one in scan if not is_hidden(one.name))
    found: tuple[list[Path], list[Path]] = ([], [])
    for name, is_folder in entries:
        found[not is_folder].append(folder / name)
    return found


def _coco(table: Path, source: Path, config: PrepareConfig) -> Listing | None:
    """Return the pictures of COCO annotations of two or more categories; None if they are not."""
    try:
        if table.stat().st_size > _MAX_JSON_BYTES or not is_coco_file(table):
            return None
        listing = _read(table, source, config)
    except (StepladderError, OSError):
        return None
    return listing if len({one.label for one in listing.pictures}) > 1 else None


def _starts(folder: Path) -> tuple[str, str]:
    """Return how a warning about a folder begins, and one about a file in it."""
    return f"{folder}:", f"{folder}/"


def _read(table: Path, source: Path, config: PrepareConfig) -> Listing:
    listing = list_table(table, config, folder=source)
    note = Note(f"{table.parent}: read the labels in {printable(table.name)}")
    return replace(listing, warnings=(note, *listing.warnings))


def _with_splits_of_folders(listing: Listing) -> Listing:
    """Return the listing with the splits in the paths, if the table names none."""
    if any(picture.split is not None for picture in listing.pictures):
        return listing
    top = [picture.path.partition("/")[0] for picture in listing.pictures]
    splits = assign_splits(named_as_splits(sorted(set(top))))
    if not set(top) <= splits.keys() or Split.TRAIN not in splits.values():
        return listing
    pictures = [
        replace(one, split=splits[folder])
        for one, folder in zip(listing.pictures, top, strict=True)
    ]
    return replace(listing, pictures=pictures)


def _table_in(folder: Path) -> Path | None:
    found = [folder / name for name in TABLES if (folder / name).is_file()]
    if len(found) > 1:
        raise UsageError(
            f"both {found[0].name} and {found[1].name} may have the labels",
            where=str(folder),
            fix=f"Choose one: stepladder prepare {shlex.quote(printable(str(found[0])))}",
        )
    return next(iter(found), None)

"""Find the folders of train, val and test, and list the pictures in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from stepladder.config.choices import Split
from stepladder.data.sources.folders.ambiguous import ambiguous
from stepladder.data.sources.folders.anomalies import refuse_one_class_in_train
from stepladder.data.sources.folders.classes import list_classes
from stepladder.data.sources.folders.reading import MIN_SHARED, FolderReading
from stepladder.data.sources.listing import Picture, name_some
from stepladder.data.sources.splits.split_labels import are_no_classes, label_by_table
from stepladder.data.sources.splits.split_names import (
    SPLIT_NAMES,
    assign_splits,
    is_of_annotations,
    named_as_splits,
    split_candidates,
    write_split_folders,
)
from stepladder.data.sources.walk import Folder, printable
from stepladder.errors import DataError, UsageError


def find_splits(
    reading: FolderReading, folders: list[Folder], below: Mapping[Folder, list[str]]
) -> dict[Folder, Split] | None:
    """Return the split of each folder; None if the folders are classes.

    Args:
        reading: the source's folders.
        folders: those at the top.
        below: names of the subfolders of each.

    Raises:
        UsageError: if two folders are for the same split, or a folder may be one.
        DataError: if there is no folder for train.
    """
    known = [folder for folder in folders if folder.name.lower() in SPLIT_NAMES]
    likely = [folder for folder in folders if split_candidates(folder.name)]
    shared = Counter(name for folder in likely for name in set(below[folder]))
    trains, flat = _train_and_flat(reading, likely, folders, below)
    named = [
        folder
        for folder in likely
        if folder in (*known, *trains, *flat) or any(shared[name] > 1 for name in below[folder])
    ]
    by_name = assign_splits(folder.name for folder in named)
    found = {folder: by_name[folder.name] for folder in named}
    splits = set(found.values())
    if not found or (len(found) < len(folders) and (Split.TRAIN not in splits or len(splits) == 1)):
        return None  # "test" or "train" among other names is an ordinary class
    labelled = [split for folder, split in found.items() if folder not in flat]
    if len(labelled) > len(set(labelled)):
        raise UsageError(
            "by their names, two of these folders are for the same split: "
            f"{name_some([f'{one.path} ({split})' for one, split in found.items()])}",
            where=str(reading.root),
            fix="Set the split of each folder yourself, and leave out a folder that is to be "
            f"skipped: {write_split_folders(by_name)}",
        )
    if Split.TRAIN not in splits:
        raise DataError(
            f"the source has a folder for {' and one for '.join(sorted(splits))}, but none for "
            "train",
            where=str(reading.root),
            fix=f"Put the training pictures into {reading.root / 'train'}, with one folder for "
            "each class.",
        )
    classes = {name for folder in found for name in below[folder]}
    for folder in folders:
        is_other = folder not in found and not is_of_annotations(folder.name)
        if is_other and len(classes & set(below[folder])) >= MIN_SHARED:
            raise ambiguous(reading, folders, classes & set(below[folder]), below)
    warn_of_names(reading, {folder.name: split for folder, split in found.items()})
    return found


def _train_and_flat(
    reading: FolderReading,
    likely: list[Folder],
    folders: list[Folder],
    below: Mapping[Folder, list[str]],
) -> tuple[list[Folder], list[Folder]]:
    """Return folders of train with classes, and those of val and test without class folders.

    Both are empty if one of them is, as in `train/cat`, `train/dog`, `test1/1.jpg`.
    """
    alike = named_as_splits(folder.name for folder in folders)
    named = {folder: split_candidates(folder.name) for folder in likely if folder.name in alike}
    trains = [
        folder
        for folder, splits in named.items()
        if Split.TRAIN in splits and len(below[folder]) >= MIN_SHARED
    ]
    around = {name for folder in trains for name in reading.unwrap(folder).path.split("/")}
    flat = [folder for folder in named if folder not in trains and reading.flat(folder, around)]
    return (trains, flat) if trains and flat else ([], [])


def find_inner_splits(
    reading: FolderReading, below: Mapping[Folder, list[str]]
) -> dict[str, Split] | None:
    """Return the splits of the folders inside the classes; None if they are not splits."""
    names = sorted({name for inside in below.values() for name in inside})
    splits = assign_splits(names)
    if not {Split.TRAIN} < set(splits.values()) or len(splits) < len(names):
        return None
    if not all(below.values()) or any(map(reading.has_pictures, below)):
        return None
    return splits if len(set(splits.values())) == len(splits) else None


def list_named_splits(
    reading: FolderReading, folders: list[Folder], told: Mapping[str, Split]
) -> list[Picture]:
    """List splits as --split-folders names them: at the top, or inside the classes.

    Raises:
        UsageError: if it names no folder for train, or folders that do not exist.
    """
    top = {folder.name: folder for folder in folders}
    inner = {name for folder in folders for name in reading.names_below(folder)}
    for names, is_inner in ((top.keys(), False), (inner, True)):
        if not told.keys() <= names:
            continue
        if Split.TRAIN not in told.values():
            raise UsageError(
                "--split-folders names no folder for train",
                why="A model is trained on the pictures of train.",
                fix="Add the folder of training pictures to it, such as --split-folders "
                f"{next(iter(told))}=train",
            )
        if is_inner:
            return list_inner_splits(reading, folders, told)
        return list_splits(reading, folders, {top[name]: split for name, split in told.items()})
    raise unknown_folders(reading, told.keys() - top.keys() or told.keys(), top)


def unknown_folders(
    reading: FolderReading, unknown: Iterable[str], names: Iterable[str]
) -> UsageError:
    """Return an error for names in --split-folders that no folder has."""
    return UsageError(
        "--split-folders names folders that do not exist in the source: "
        f"{name_some(sorted(unknown))}",
        where=str(reading.root),
        fix=f"Name some of these folders: {name_some(sorted(names))}",
    )


def list_splits(
    reading: FolderReading, folders: list[Folder], splits: Mapping[Folder, Split]
) -> list[Picture]:
    """List the pictures of folders of splits; others are skipped with a warning."""
    others = [folder.path for folder in folders if folder not in splits]
    if others:
        reading.warnings.append(
            f"{reading.root}: skipped folders that are not train, val or test, with all pictures "
            f"in them: {name_some(others)}"
        )
    pictures: list[Picture] = []
    around: set[str] = set()
    for folder, split in splits.items():
        if split is Split.TRAIN:
            top = reading.unwrap(folder)
            reading.record_skipped(folder, top)
            around.update(top.path.split("/"))
            pictures += list_classes(reading, reading.subfolders(top), split=Split.TRAIN)
    classes = {picture.label for picture in pictures}
    for folder, split in splits.items():
        if split is not Split.TRAIN:
            pictures += _list_held_out(reading, folder, split, classes, around - classes)
    refuse_one_class_in_train(reading, splits, pictures)
    return pictures


def list_inner_splits(
    reading: FolderReading, folders: list[Folder], splits: Mapping[str, Split]
) -> list[Picture]:
    """List the pictures of folders of splits inside class folders."""
    pictures: list[Picture] = []
    skipped: set[str] = set()
    for folder in folders:
        for inner in reading.subfolders(folder):
            if inner.name not in splits:
                skipped.add(inner.name)
                continue
            label, split = printable(folder.name), splits[inner.name]
            pictures += (Picture(path, label, split) for path in reading.walk.files(inner))
    if skipped:
        shown = name_some(sorted(skipped))
        reading.warnings.append(
            f"{reading.root}: inside the class folders, skipped folders that are not train, val "
            f"or test, with all pictures in them: {shown}"
        )
    return pictures


def warn_of_names(reading: FolderReading, splits: Mapping[str, Split]) -> None:
    """Report how names that are not the usual ones were read."""
    unusual = [
        f"{printable(name)} as {split.value}"
        for name, split in splits.items()
        if name.lower() not in SPLIT_NAMES
    ]
    if unusual:
        reading.warnings.append(f"{reading.root}: took folders for splits: {', '.join(unusual)}")


def _list_held_out(
    reading: FolderReading, folder: Folder, split: Split, classes: set[str], around: set[str]
) -> list[Picture]:
    """List val or test: by its class folders, else by a table in it, else without a picture.

    Args:
        reading: the source's folders.
        folder: that of the split.
        split: val or test.
        classes: of train.
        around: names of the folders around those of the classes of train.
    """
    top, inside = folder, reading.unwrap(folder)
    names, inner = (set(reading.names_below(one)) for one in (top, inside))
    if are_no_classes(names - around, classes) or (classes & inner and not classes & names):
        reading.record_skipped(top, inside)
        top, names = inside, inner
    if not are_no_classes(names - around, classes):
        return list_classes(reading, reading.subfolders(top), split=split)
    paths = list(reading.walk.files(top))
    found = label_by_table(reading.root, top.path, paths, split, classes)
    if found is not None:
        pictures, table = found
        reading.warnings.append(f"{reading.root}: read the labels of {top.path} in {table}")
        labelled = {picture.path for picture in pictures}
        for path in paths:
            if path not in labelled:
                reading.walk.skipped.add(path, f"picture(s) without a label in {table}")
        return pictures
    for path in paths:
        reading.walk.skipped.add(path, f"picture(s) without labels in {printable(top.path)}")
    return []

"""Read a folder of pictures: which of its folders are classes, and which are splits.

The readings, in this order:

    train/cat, val/cat             splits, by name; other names of splits if they share classes
    cat/train, cat/test            splits one level down, if every class has only such folders
    train/train/cat, test/1.jpg    likewise; pictures of test without class folders are left out
    dataset/cat, dataset/dog       a single folder around the others is skipped
    images/cat, annotations/1.xml  likewise, beside folders of annotations, masks or no pictures
    a/airfield, b/bakery           folders of letters are no classes, but those in them
    cat, dog                       classes, whatever is below them, except masks beside pictures

Parts of one download are merged first. Folders that share subfolders in another way are ambiguous:
an error asks for `--split-folders` or `--classes-from top`. So do folders that all have the name of
a split: their classes are elsewhere, in a table or in the names of the pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from stepladder.config.choices import ClassesFrom, Split
from stepladder.data.sources.folders.ambiguous import refuse_crossing, refuse_versions_with_splits
from stepladder.data.sources.folders.anomalies import refuse_several_objects
from stepladder.data.sources.folders.classes import list_classes, nested_warning
from stepladder.data.sources.folders.copied_names import copied_names_warning
from stepladder.data.sources.folders.reading import (
    AS_NAMED,
    MIN_SHARED,
    FolderOptions,
    FolderReading,
)
from stepladder.data.sources.folders.splits import (
    find_inner_splits,
    find_splits,
    list_inner_splits,
    list_named_splits,
    list_splits,
    unknown_folders,
    warn_of_names,
)
from stepladder.data.sources.folders.top import find_top
from stepladder.data.sources.labels.label_pattern import LabelPattern
from stepladder.data.sources.labels.labels_elsewhere import without_masks
from stepladder.data.sources.labels.no_classes import (
    no_class_folders,
    refuse_folders_of_a_table,
    refuse_loose_pictures,
    refuse_names_of_splits,
    refuse_one_folder,
    refuse_splits_without_classes,
)
from stepladder.data.sources.listing import Listing, Note, Picture, name_some
from stepladder.data.sources.not_read.archives import is_archive, packed_beside
from stepladder.data.sources.not_read.not_here import advice
from stepladder.data.sources.splits.split_lists import unused_splits
from stepladder.data.sources.splits.split_names import (
    assign_splits,
    named_as_splits,
    parse_split_folders,
    split_candidates,
)
from stepladder.data.sources.walk import OF_MASK_FILES, OF_MASKS, Folder, Walk, printable


def list_walk(walk: Walk, root: Path, options: FolderOptions = AS_NAMED) -> Listing:
    """List class folders, or class folders inside or around folders of splits.

    Raises:
        UsageError: if the folders can be read in two ways, or an option names no folder.
        DataError: if there are no pictures, a class is empty, or there is no train folder.
    """
    reading = FolderReading(walk, root, options)
    pictures = _pictures(reading)
    skipped = walk.skipped
    if not pictures:
        raise no_class_folders(walk, root)
    labels = {picture.label for picture in pictures}
    is_told = options.classes_from is ClassesFrom.TOP or options.label_pattern is not None
    if not is_told:
        _refuse_no_classes(reading, pictures, labels)
    if skipped.counts:
        how = advice(skipped, root)
        if how is None and OF_MASKS in skipped.counts:
            how = "If masks or annotations are pictures to train on, give their folders other names"
        if how is None and OF_MASK_FILES in skipped.counts:
            how = "If masks are pictures to train on, move them to a folder of their own class"
        told = f"{root}: skipped {skipped.describe()}"
        is_note = how is None and skipped.are_documents()
        reading.warnings.append(Note(told) if is_note else f"{told}. {how}" if how else told)
    is_packed = any(is_archive(path) for some in skipped.examples.values() for path in some)
    if is_packed and (packed := packed_beside(root, [picture.path for picture in pictures])):
        reading.warnings.append(packed)
    if not is_told and (named := copied_names_warning(root, pictures)):
        reading.warnings.append(named)
    if reading.nested:
        has_val = any(picture.split is Split.VAL for picture in pictures)
        reading.warnings.append(nested_warning(reading, can_group=not has_val))
    has_splits = any(picture.split is not None for picture in pictures)
    if not has_splits and (unused := unused_splits(root, pictures)):
        reading.warnings.append(unused)
    return Listing(root, pictures, skipped, tuple(reading.warnings))


def _refuse_no_classes(
    reading: FolderReading, pictures: Sequence[Picture], labels: set[str]
) -> None:
    """Refuse folders that are probably not classes, because the labels are elsewhere."""
    if len(labels) == 1:
        paths = [picture.path for picture in pictures]
        refuse_one_folder(reading.walk, reading.root, next(iter(labels)), paths)
    if reading.options.split_folders is None:
        refuse_loose_pictures(reading.walk, reading.root, labels)


def _pictures(reading: FolderReading) -> list[Picture]:
    options, root = reading.options, reading.root
    top = find_top(reading)
    if options.label_pattern is not None:
        return _list_by_pattern(reading, top, options.label_pattern)
    reading = replace(reading, walk=replace(reading.walk, top=top.path))
    folders = reading.subfolders(top)
    if options.split_folders is not None:
        return list_named_splits(reading, folders, parse_split_folders(options.split_folders))
    if options.classes_from is ClassesFrom.TOP:
        return list_classes(reading, folders, split=None)
    likely = [folder for folder in folders if split_candidates(folder.name)]
    flat = {one: inside for one in likely if (inside := reading.flat(one)) is not None}
    refuse_splits_without_classes(reading.walk, root, folders, flat)
    below = {folder: reading.names_in(folder) for folder in folders}
    splits = find_splits(reading, folders, below)
    if splits is not None:
        return list_splits(reading, folders, splits)
    inner = find_inner_splits(reading, below)
    if inner is not None:
        refuse_versions_with_splits(reading, folders)
        shown = ", ".join(f"{printable(name)} as {split}" for name, split in inner.items())
        reading.warnings.append(
            f"{root}: took the folders inside the class folders for splits: {shown}"
        )
        return list_inner_splits(reading, folders, inner)
    refuse_several_objects(reading, folders, below)
    refuse_crossing(reading, folders, below)
    classes = [one for one in folders if len(below[one]) >= MIN_SHARED]
    refuse_names_of_splits(root, [one.name for one in folders], [one.path for one in classes])
    refuse_folders_of_a_table(reading.walk, root, folders)
    return list_classes(reading, folders, split=None)


def _list_by_pattern(reading: FolderReading, top: Folder, pattern: str) -> list[Picture]:
    """List all pictures, whose classes are in their paths; folders may be splits."""
    label_in = LabelPattern.parse(pattern)
    folders = [entry for entry in reading.entries(top) if isinstance(entry, Folder)]
    names = [folder.name for folder in folders]
    splits = assign_splits(named_as_splits(names))
    if reading.options.split_folders is not None:
        splits = parse_split_folders(reading.options.split_folders)
        if not splits.keys() <= set(names):
            raise unknown_folders(reading, splits.keys() - set(names), names)
    elif Split.TRAIN not in splits.values():
        splits = {}
    warn_of_names(reading, splits)
    pictures: list[Picture] = []
    others: list[str] = []
    for entry in reading.walk.entries(top):
        name = entry.name if isinstance(entry, Folder) else None
        split = None if name is None else splits.get(name)
        if splits and split is None:
            others.append(entry.path if isinstance(entry, Folder) else entry)
            continue
        for path in reading.walk.files(entry) if isinstance(entry, Folder) else (entry,):
            label = label_in(printable(path))
            if label is None:
                reading.walk.skipped.add(path, "picture(s) that --label-pattern does not match")
            else:
                pictures.append(Picture(path, label, split))
    if others:
        reading.warnings.append(
            f"{reading.root}: skipped everything that is not in a folder of train, val or test: "
            f"{name_some(others)}"
        )
    pictures = _with_known_classes(reading, _without_masks(reading, pictures))
    if not pictures:
        raise label_in.matches_nothing(reading.walk.skipped)
    return pictures


def _with_known_classes(reading: FolderReading, pictures: list[Picture]) -> list[Picture]:
    """Leave out a held-out split whose names contain no classes, such as `test1/10.jpg`.

    What the expression finds in them are numbers, or one word, and no class of train.
    """
    labels: dict[Split | None, set[str]] = {}
    for one in pictures:
        labels.setdefault(one.split, set()).add(one.label)
    known = labels.get(Split.TRAIN, set())
    unlabelled = {
        split
        for split, some in labels.items()
        if split not in (None, Split.TRAIN)
        and known.isdisjoint(some)
        and (len(some) == 1 or all(map(str.isdigit, some)))
    }
    for one in pictures:
        if one.split in unlabelled:
            reading.walk.skipped.add(
                one.path, f"picture(s) of {one.split} whose names have no class of train"
            )
    return [one for one in pictures if one.split not in unlabelled]


def _without_masks(reading: FolderReading, pictures: list[Picture]) -> list[Picture]:
    """Leave out masks and annotations of other pictures, which have their names and classes."""
    kept = set(without_masks([one.path for one in pictures]))
    known = {(_stem(one), one.label) for one in pictures if one.path in kept}
    masks = {
        one.path for one in pictures if one.path not in kept and (_stem(one), one.label) in known
    }
    for path in sorted(masks):
        reading.walk.skipped.add(path, OF_MASKS)
    return [one for one in pictures if one.path not in masks]


def _stem(picture: Picture) -> str:
    return PurePosixPath(picture.path).stem

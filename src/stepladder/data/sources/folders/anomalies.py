"""Refuse splits of anomaly detection, as in MVTec AD: the defects are only in test."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from stepladder.config.choices import Split
from stepladder.data.sources.folders.reading import FolderReading
from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.listing import Picture, name_some
from stepladder.data.sources.splits.split_names import (
    assign_splits,
    is_of_annotations,
    write_split_folders,
)
from stepladder.data.sources.walk import Folder, printable
from stepladder.errors import DataError, UsageError


def refuse_one_class_in_train(
    reading: FolderReading, splits: Mapping[Folder, Split], pictures: Sequence[Picture]
) -> None:
    """Refuse splits whose train has one class, of those that are in val or test.

    Raises:
        DataError: if they are so.
    """
    labels = {picture.label for picture in pictures if picture.split is Split.TRAIN}
    others = {picture.label for picture in pictures} - labels
    held_out = {picture.label for picture in pictures if picture.split is not Split.TRAIN}
    if len(labels) != 1 or not others or not labels <= held_out:
        return
    names = name_some([folder.path for folder, one in splits.items() if one is Split.TRAIN])
    as_train = write_split_folders({folder.name: Split.TRAIN for folder in splits})
    raise DataError(
        f"{names} has only the class {labels.pop()!r}, but val or test has others, too: "
        f"{name_some(sorted(others))}",
        where=str(reading.root),
        why="Data sets of anomaly detection, such as MVTec AD, are divided so. A classifier needs "
        "pictures of each class in train.",
        fix="To read the pictures of all these folders as train, of which a part becomes val: "
        f"stepladder prepare {typed(reading.root)} {as_train}",
    )


def refuse_several_objects(
    reading: FolderReading, folders: list[Folder], below: Mapping[Folder, Collection[str]]
) -> None:
    """Refuse `bottle` and `screw` with `train`, `test` and `ground_truth` in each.

    Raises:
        UsageError: if the folders contain the same splits, and masks beside them.
    """
    inside = {frozenset(names) for names in below.values()}
    if len(folders) < 2 or len(inside) != 1:
        return
    names = sorted(inside.pop())
    splits = assign_splits(names)
    masks = [name for name in names if is_of_annotations(name)]
    if not masks or len(splits) + len(masks) < len(names) or Split.TRAIN not in splits.values():
        return
    outer = name_some([folder.path for folder in folders])
    as_train = write_split_folders(dict.fromkeys(splits, Split.TRAIN))
    first = folders[0].path
    start = f"{re.escape(printable(first.rpartition('/')[0]))}/" if "/" in first else ""
    pattern = f"^{start}([^/]+)/(?:{'|'.join(map(re.escape, splits))})/"
    raise UsageError(
        f"the folders {outer} contain {name_some(names)} each, as in data sets of anomaly "
        "detection, so it is unknown if they are the classes or those in their splits",
        where=str(reading.root),
        why=f"Pictures in {name_some(masks)} are masks, not pictures to learn from.",
        fix="To read the classes of one of them, all as train, of which a part becomes val: "
        f"stepladder prepare {typed(reading.root / first)} {as_train}\n"
        f"If {outer} are the classes: stepladder prepare {typed(reading.root)} "
        f"--label-pattern {shlex.quote(pattern)}",
    )

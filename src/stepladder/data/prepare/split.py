"""Split pictures into train and val by a hash of their content.

Because the split depends on the hash alone, adding files does not move existing ones, and all
copies of a picture, or all pictures of a group, are in the same split.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from stepladder.config.choices import Split
from stepladder.data.sources.listing import Listing, Picture, name_some
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError, UsageError

FOLDER = "folder"
"""The value of group_by that makes each folder a group."""

_DRAWN_FIX = " If val was split off by --val-frac: add pictures, or make folders train and val."


def draw_split(key: bytes, *, val_frac: float) -> Split:
    """Return train or val, decided by a sha256.

    Uses the last 8 bytes: the first ones decide the file of the store.
    """
    return Split.VAL if int.from_bytes(key[-8:]) < val_frac * 2**64 else Split.TRAIN


def assign_splits(
    listing: Listing, hashes: Sequence[bytes], *, val_frac: float, group_by: str | None
) -> list[Split]:
    """Return the split of each picture: the source's own, or one decided by the hash.

    If the source has train but no val, a share of train becomes val. If it has no splits, it is
    split into train and val; a test split is never created.

    Args:
        listing: the pictures of the source.
        hashes: sha256 of each picture's bytes, in the listing's order.
        val_frac: fraction of pictures for val.
        group_by: see PrepareConfig.group_by.

    Raises:
        UsageError: if group_by names no column and matches no path.
    """
    named = {picture.split for picture in listing.pictures}
    if Split.VAL in named:
        return [picture.split or Split.TRAIN for picture in listing.pictures]
    groups = _groups(listing, group_by) if group_by else [None] * len(hashes)
    splits = []
    for picture, content, group in zip(listing.pictures, hashes, groups, strict=True):
        if picture.split is Split.TEST:
            splits.append(Split.TEST)
            continue
        key = content if group is None else hashlib.sha256(os.fsencode(group)).digest()
        splits.append(draw_split(key, val_frac=val_frac))
    return splits


def check_classes(counts: dict[Split, Counter[str]]) -> list[str]:
    """Compare the classes of the splits.

    Returns:
        Warnings: classes whose names are probably one, and classes of train that are missing in
        val or test, with their counts in train.

    Raises:
        DataError: if train or val is empty, or val or test has a class that is not in train.
    """
    train = counts.get(Split.TRAIN, Counter())
    warnings = _similar_names(train)
    for split in (Split.VAL, Split.TEST):
        held_out = counts.get(split, Counter())
        unknown = sorted(held_out.keys() - train.keys())
        if unknown:
            shown = name_some([f"{label} ({held_out[label]} in {split})" for label in unknown])
            raise DataError(
                f"{len(unknown)} classes of {split} are not in train: {shown}",
                why="A model cannot learn classes that it never sees.",
                fix=f"Add pictures of them to train, or remove them from {split}."
                + (_DRAWN_FIX if split is Split.VAL else ""),
            )
        missing = sorted(train.keys() - held_out.keys())
        if held_out and missing:
            shown = name_some([f"{label} ({train[label]} in train)" for label in missing])
            warnings.append(
                f"{split} has no picture of {len(missing)} of {len(train)} classes: {shown}; "
                f"its accuracy does not cover them"
            )
    if not counts.get(Split.VAL):
        raise DataError(
            "val has no pictures",
            why="The best checkpoint and early stopping depend on val.",
            fix="Add pictures, raise --val-frac, or make a val folder.",
        )
    return warnings


def _groups(listing: Listing, group_by: str) -> list[str | None]:
    if listing.has_group_column:
        return [picture.group for picture in listing.pictures]
    if group_by == FOLDER:
        return [_folder_group(picture) for picture in listing.pictures]
    return _pattern_groups(listing, group_by)


def _folder_group(picture: Picture) -> str:
    parent = PurePosixPath(picture.path).parent
    if printable(parent.name) == picture.label:
        raise UsageError(
            f"prepare.group_by: folder, but {name_some([picture.path])} is directly in its "
            "class folder",
            why="The whole class would be one group, in one split.",
            fix="Put each scene in a folder inside its class folder, or group by a regular "
            "expression on the path: --group-by '(scene[0-9]+)'.",
        )
    return str(parent)


def _pattern_groups(listing: Listing, pattern: str) -> list[str | None]:
    """Group by the match of a regular expression in the path, or by its capture groups."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"prepare.group_by: {pattern!r} is not a valid regular expression ({error})",
            fix="Quote the expression, as in --group-by '(scene[0-9]+)', or use --group-by folder.",
        ) from None
    groups: list[str | None] = []
    for picture in listing.pictures:
        match = compiled.search(picture.path)
        found = (match.groups(default="") or (match.group(),)) if match else None
        groups.append(None if found is None else "\0".join(found))
    if not any(group is not None for group in groups):
        raise UsageError(
            f"prepare.group_by: {pattern!r} is not a column of the source, and as a regular "
            "expression it matches no path",
            why=f"A path looks like {name_some([listing.pictures[0].path])}.",
            fix="Use a CSV column, `folder`, or an expression that matches each path.",
        )
    return groups


def _similar_names(train: Counter[str]) -> list[str]:
    """Return a warning for each group of classes whose names differ in nearly nothing."""
    groups: dict[str, list[str]] = {}
    for label in sorted(train):
        words = re.sub(r"[\s_-]+", " ", label).strip().casefold()
        groups.setdefault(re.sub(r"(?<!\d)0+(?=\d)", "", words), []).append(label)
    return [
        "classes whose names differ only in case, blanks or leading zeros: "
        f"{name_some([f'{label!r} ({train[label]} in train)' for label in labels])}; if they are "
        "one class, give them one name"
        for labels in groups.values()
        if len(labels) > 1
    ]

"""Split pictures into train and val by a hash of their content.

The split depends on the hash alone, except for classes that train or val would lack. So adding
files does not move those of other classes, and all copies of a picture, or all pictures of a group,
are in the same split.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from stepladder.config.choices import Split
from stepladder.data.prepare.class_names import NEGATIVE, near_classes
from stepladder.data.prepare.each_class import moves
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.sources.listing import Listing, Picture, name_some
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError, UsageError

FOLDER = "folder"
"""The value of group_by that makes each folder a group."""

_LEAST_TO_DIVIDE = 2  # pictures of a class, one for train and one for val
_MAX_PAIRS = 5
_MAX_ALONE = 3  # classes of one picture that are named
_MAX_COMPARED = 20  # of the classes that train lacks
_ONE_CLASS = (
    "If both names mean one class, rename one of the two folders, or write the same label in the "
    "table. Otherwise: "
)
_DRAWN_FIX = (
    " If val was drawn at random (--val-frac), this can only happen to a class with very few "
    "pictures: add some."
)


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
    split into train and val; a test split is never created. Then train and val get a picture of
    each class, if it has two.

    Args:
        listing: the pictures of the source.
        hashes: sha256 of each picture's bytes, in the listing's order; empty if it is bad.
        val_frac: fraction of pictures for val.
        group_by: see PrepareConfig.group_by.

    Raises:
        UsageError: if group_by names no column and matches no path.
    """
    named = {picture.split for picture in listing.pictures}
    if Split.VAL in named:
        return [picture.split or Split.TRAIN for picture in listing.pictures]
    groups = _groups(listing, group_by) if group_by else [None] * len(hashes)
    keys = [
        content if group is None else hashlib.sha256(os.fsencode(group)).digest()
        for content, group in zip(hashes, groups, strict=True)
    ]
    splits = [
        Split.TEST if picture.split is Split.TEST else draw_split(key, val_frac=val_frac)
        for picture, key in zip(listing.pictures, keys, strict=True)
    ]
    usable = [
        at
        for at, content in enumerate(hashes)
        if content and listing.pictures[at].split is not Split.TEST
    ]
    labels = [listing.pictures[at].label for at in usable]
    moved = moves([keys[at] for at in usable], labels, [splits[at] for at in usable])
    for at in usable if moved else ():
        splits[at] = moved.get(keys[at], splits[at])
    return splits


def check_classes(
    counts: dict[Split, Counter[str]],
    classes: Sequence[str] = (),
    bad: Sequence[Bad] = (),
    *,
    rename: Callable[[Sequence[tuple[str, str]], Split], str | None] = lambda _pairs, _split: None,
) -> list[str]:
    """Compare the classes of the splits.

    Args:
        counts: number of usable pictures in each split and class.
        classes: all classes of the source.
        bad: quarantined pictures, for messages.
        rename: returns the command that renames classes of a split, as `renaming`; None: unknown.

    Returns:
        Warnings: classes whose names are probably one, and classes of train that are missing in
        val or test, with their counts in train.

    Raises:
        DataError: if train or val is empty, a class has no usable picture, or val or test has a
            class that is not in train.
    """
    empty = sorted(set(classes) - {label for some in counts.values() for label in +some})
    if empty:
        raise DataError(
            f"{len(empty)} of {len(classes)} classes have only pictures that cannot be used: "
            f"{name_some(empty)}",
            why=_why_bad(empty, bad),
            fix="Replace the pictures of these classes, or remove the classes from the source.",
        )
    train = counts.get(Split.TRAIN, Counter())
    warnings = _similar_names(train)
    for split in (Split.VAL, Split.TEST):
        held_out = counts.get(split, Counter())
        unknown = sorted(held_out.keys() - train.keys())
        if unknown:
            shown = name_some([f"{label} ({held_out[label]} in {split})" for label in unknown])
            near = near_classes(unknown[:_MAX_COMPARED], train.keys() - held_out.keys())
            pairs = [
                f"{printable(one)!r} in {split} looks like {printable(other)!r} in train"
                for one, other in near
            ]
            command = rename(near, split) if near else None
            of_one = (
                f"If both names mean one class: {command}\nOtherwise: " if command else _ONE_CLASS
            )
            have = "has" if len(unknown) == 1 else "have"
            raise DataError(
                f"{len(unknown)} of the classes in {split} {have} no pictures in train: {shown}",
                why=f"{'; '.join(pairs[:_MAX_PAIRS])}."
                if pairs
                else "A model cannot learn classes that it never sees in training.",
                fix=(of_one if pairs else "")
                + f"Add pictures of these classes to train, or remove the classes from {split}."
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
        is_single = max(train.values(), default=0) < _LEAST_TO_DIVIDE
        raise DataError(
            "no pictures are left for the split val (validation), on which the best checkpoint and "
            "early stopping depend",
            why="Each class has only one picture, which is in train. There are "
            f"{len(train)} classes, such as {name_some(sorted(train)[:_MAX_ALONE])}."
            if is_single
            else "Pictures are drawn for val only from classes with two different pictures or, "
            "with --group-by, with pictures of two groups.",
            fix="Add pictures to the classes, or make folders train and val, with class folders in "
            "each.",
        )
    return warnings


def _why_bad(empty: Sequence[str], bad: Sequence[Bad]) -> str | None:
    """Return the reason of a bad picture, of an empty class if its folder is in the path."""
    of_them = [item for item in bad if set(PurePosixPath(item.path).parts) & set(empty)]
    found = min(of_them or bad, default=None)
    return None if found is None else f"{printable(found.path)!r}: {found.reason}"


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
            "--group-by folder keeps the pictures of a folder in the same split, but "
            f"{name_some([picture.path])} is directly in its class folder",
            why="The whole class would be one group, and be only in train or only in val.",
            fix="Inside each class folder, make a folder for each group of similar pictures. Or "
            "group by a regular expression on the path: --group-by '(scene[0-9]+)'",
        )
    return str(parent)


def _pattern_groups(listing: Listing, pattern: str) -> list[str | None]:
    """Group by the match of a regular expression in the path, or by its capture groups."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--group-by {pattern!r} is not a valid regular expression ({error})",
            fix="Correct it, and write it in single quotes, as in --group-by '(scene[0-9]+)'. Or "
            "keep the pictures of each folder in the same split: --group-by folder",
        ) from None
    groups: list[str | None] = []
    for picture in listing.pictures:
        match = compiled.search(picture.path)
        found = (match.groups(default="") or (match.group(),)) if match else None
        groups.append(None if found is None else "\0".join(found))
    if not any(group is not None for group in groups):
        raise UsageError(
            f"--group-by {pattern!r} is not the name of a column of the source and, as a regular "
            "expression, does not match the path of any picture",
            why=f"The path of a picture is, for example, {name_some([listing.pictures[0].path])}.",
            fix="Set --group-by to a column of the table, to folder, or to a regular expression "
            "that matches these paths, such as '(scene[0-9]+)'.",
        )
    return groups


def _similar_names(train: Counter[str]) -> list[str]:
    """Return a warning for each group of classes whose names differ in nearly nothing."""
    groups: dict[str, list[str]] = {}
    for label in sorted(train):
        sign = "-" if NEGATIVE.fullmatch(label) else ""
        words = sign + re.sub(r"[\s_-]+", " ", label).strip().casefold()
        groups.setdefault(re.sub(r"(?<!\d)0+(?=\d)", "", words), []).append(label)
    return [
        "classes whose names differ only in case, blanks or leading zeros: "
        f"{name_some([f'{label!r} ({train[label]} in train)' for label in labels])}; if they are "
        "one class, give them one name"
        for labels in groups.values()
        if len(labels) > 1
    ]

"""The pictures of a source: paths, labels, splits and groups, without opening them."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.data.sources.labels.captions import NO_CAPTIONS, find_captions
from stepladder.data.sources.walk import Skipped, printable
from stepladder.errors import DataError

_MAX_NAMED = 10


class Note(str):
    """A sentence of how a source was read, among the warnings, that is not about a problem."""

    __slots__ = ()


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
        warnings: warnings for the user, and notes of how the source was read.
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


def join_unicode_forms(listing: Listing, source: str) -> Listing:
    """Join the classes whose names are the same text in two Unicode forms, with a warning.

    macOS and some archives write "é" as "e" and an accent, so the folder of a class may be in one
    form in train and in another in val. Names that occur in one form only are kept.
    """
    labels = {picture.label for picture in listing.pictures}
    composed = {label: unicodedata.normalize("NFC", label) for label in labels}
    num_forms = Counter(composed.values())
    joined = {old: new for old, new in composed.items() if num_forms[new] > 1}
    if not joined:
        return listing
    pictures = [
        replace(picture, label=joined.get(picture.label, picture.label))
        for picture in listing.pictures
    ]
    warning = (
        f"{source}: joined classes whose names are the same text in different Unicode forms (an "
        f"accent as a character of its own, or not): {name_some(sorted(set(joined.values())))}"
    )
    return replace(listing, pictures=pictures, warnings=(*listing.warnings, warning))


def require_classes(listing: Listing, source: str) -> Listing:
    """Return the listing, in which classes of the same name in two Unicode forms are joined.

    Raises:
        DataError: if there is only one class.
    """
    listing = join_unicode_forms(listing, source)
    classes = {picture.label for picture in listing.pictures}
    if len(classes) == 1:
        raise DataError(
            f"all pictures of the source have the same label, {printable(classes.pop())!r}",
            where=source,
            why="A classifier needs pictures of at least two classes.",
            fix="In a folder, put the pictures of each class into a folder of their own; in a "
            "table, write the class of each picture into its column of labels (--label-column).",
        )
    return listing


def refuse_captions(
    listing: Listing, source: str, advice: Callable[[], str | None] = lambda: None
) -> Listing:
    """Return the listing, with a warning if its labels may be captions.

    Args:
        listing: the pictures of a source that has labels elsewhere than in the names of folders.
        source: for errors.
        advice: returns what else could be the labels, and what to type.

    Raises:
        DataError: if they are captions.
    """
    captions = find_captions([picture.label for picture in listing.pictures])
    if captions is None:
        return listing
    if captions.is_sure:
        raise DataError(
            f"the labels look like captions, not classes: {captions.describe()}",
            where=source,
            why=NO_CAPTIONS,
            fix=advice() or "Name the column of classes with --label-column, or add one.",
        )
    warning = (
        f"{source}: the labels may be captions: {captions.describe()}; each is a class of its own"
    )
    return replace(listing, warnings=(*listing.warnings, warning))


def name_some(names: list[str]) -> str:
    """Join at most ten names for a message."""
    shown = ", ".join(printable(name) for name in names[:_MAX_NAMED])
    return shown + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")

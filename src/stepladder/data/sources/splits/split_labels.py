"""Find the labels of val or test in a table beside the pictures, as Tiny ImageNet has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.csv_table import list_table
from stepladder.data.sources.labels.labels_elsewhere import tables_in
from stepladder.data.sources.listing import Listing, Picture
from stepladder.data.sources.splits.split_names import is_no_class
from stepladder.data.sources.walk import printable
from stepladder.errors import StepladderError

_MIN_NAMED_FRAC: Final = 0.5


def are_no_classes(names: Iterable[str], classes: Iterable[str]) -> bool:
    """Return whether the folders of val or test hold pictures of all classes, as `images` does.

    Args:
        names: folders in val or test.
        classes: of train.
    """
    known = set(classes)
    return all(name not in known and is_no_class(name) for name in names)


def label_by_table(
    root: Path, folder: str, paths: list[str], split: Split, classes: Iterable[str]
) -> tuple[list[Picture], str] | None:
    """Return the pictures that a table gives a class of train, and the table's name.

    The table is in their folder, or in the source.

    Args:
        root: the source.
        folder: of the split, relative to it.
        paths: of its pictures, relative to the source.
        split: which it is.
        classes: of train.

    Returns:
        None if no table has labels for half of the pictures.
    """
    known, wanted = set(classes), set(paths)
    for table in (*tables_in(root / folder), *tables_in(root)):
        listing = _listing(table)
        if listing is None:
            continue
        above = table.parent.relative_to(root)
        found = [
            Picture(path, picture.label, split)
            for picture in listing.pictures
            if (path := (above / picture.path).as_posix()) in wanted
        ]
        if len(found) >= _MIN_NAMED_FRAC * len(paths) and {one.label for one in found} <= known:
            return found, printable((above / table.name).as_posix())
    return None


def _listing(table: Path) -> Listing | None:
    try:
        return list_table(table, PrepareConfig(source=table))
    except (StepladderError, OSError):
        return None

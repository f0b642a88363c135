"""The interface of a file that contains many pictures: batches of rows in file order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.data.sources.walk import Skipped

MAX_BATCH_BYTES = 8 << 20
MAX_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a container.

    Attributes:
        row: row number in the container, from 0; of a CSV that of its file, from 1.
        data: a JPEG, PNG or NPY file; empty if `reason` is set.
        label: a class name or class number.
        split: split given by the row or its file, or None.
        path: path given by the source, or None.
        group: value of the group column, or None.
        reason: why the picture is unusable, or None.
    """

    row: int
    data: bytes
    label: str | int
    split: Split | None = None
    path: str | None = None
    group: str | None = None
    reason: str | None = None


def in_batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield items in lists of about `MAX_BATCH_BYTES` and `MAX_BATCH_ROWS` at most."""
    batch: list[Item] = []
    num_bytes = 0
    for item in items:
        batch.append(item)
        num_bytes += len(item.data)
        if num_bytes >= MAX_BATCH_BYTES or len(batch) >= MAX_BATCH_ROWS:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


class Container(ABC):
    """A file of pictures, or a part of a file that is read as a unit.

    Attributes:
        name: name of the file relative to the source, with "/" as separator.
        key: identity; equal keys mean equal rows.
        num_rows: number of rows; None if it is unknown before reading.
        picture_bytes: approximate size of all its pictures.
        skipped: what was skipped so far.
        is_complete: whether the file itself contains all pictures that were read so far. What was
            read from other files is not kept for a later run, as they may change.
    """

    name: str
    key: str
    num_rows: int | None
    picture_bytes: int
    skipped: Skipped
    is_complete: bool = True

    @abstractmethod
    def items(self) -> Iterator[list[Item]]:
        """Yield batches of rows in file order, about `MAX_BATCH_BYTES` at most.

        Raises:
            DataError: if the file is damaged or a row has no valid label; names file and row.
        """

    def label_advice(self) -> str | None:
        """Return what else could be the labels, and what to type; None if it is not known."""
        return None


@dataclass(frozen=True)
class Opened:
    """An opened source of containers.

    Attributes:
        root: folder that the containers' names are relative to.
        containers: sorted by name.
        key: hash of how rows are read; spooled bytes with another key are stale.
        class_names: class name of each label number, if the source has them.
        skipped: files that were skipped.
        warnings: warnings for the user.
        has_group: whether the group column was found.
        origin: see `Listing.origin`.
    """

    root: Path
    containers: list[Container]
    key: str
    class_names: tuple[str, ...] | None = None
    skipped: Skipped = field(default_factory=Skipped)
    warnings: tuple[str, ...] = ()
    has_group: bool = False
    origin: dict[str, Any] = field(default_factory=dict)

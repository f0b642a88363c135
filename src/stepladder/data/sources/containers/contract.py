"""What a file of pictures gives: rows, a few at a time, in its own order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
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
        row: its number in the container, from 0.
        data: a JPEG, PNG or NPY file; empty where `reason` is given.
        label: a class name, or a number that stands for one.
        split: as the row or its file says.
        path: the source's own name for it; None where it has none.
        group: the value of the group column, or None.
        reason: why it cannot be used, if that was found while it was read.
    """

    row: int
    data: bytes
    label: str | int
    split: Split | None = None
    path: str | None = None
    group: str | None = None
    reason: str | None = None


class Container(ABC):
    """A file of pictures, or a part of one that is read as a whole.

    Attributes:
        name: of the file, relative to the source, "/" between parts.
        key: identity; while it is the same, so are the rows.
        num_rows: how many; None before it was read.
        picture_bytes: all its pictures, about.
        skipped: what was left out, as far as it was read.
    """

    name: str
    key: str
    num_rows: int | None
    picture_bytes: int
    skipped: Skipped

    @abstractmethod
    def items(self) -> Iterator[list[Item]]:
        """Yield the rows in order, at most about `MAX_BATCH_BYTES` at a time.

        Raises:
            DataError: if the file is damaged, or a row has no usable label; names file and row.
        """


@dataclass(frozen=True)
class Opened:
    """A source of containers, opened.

    Attributes:
        root: folder that the containers' names are relative to.
        containers: in the order of their names.
        key: hash of how rows are read; bytes spooled under another one are stale.
        class_names: what label numbers stand for, where the source says.
        skipped: files that were left out.
        warnings: what a person should know.
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

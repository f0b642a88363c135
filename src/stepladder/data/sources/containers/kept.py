"""What containers gave, as records on disk: a prepare that was killed begins after the last one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.data.sources.containers.contract import Item
from stepladder.data.sources.walk import Skipped


@dataclass(frozen=True, slots=True)
class Spooled:
    """A picture that was hashed.

    Attributes:
        item: the picture, its bytes left out.
        sha256: of the bytes; empty where the item has a reason.
        size_bytes: of them.
        bucket, offset: where they lie in a spool, if there is one.
    """

    item: Item
    sha256: bytes
    size_bytes: int
    bucket: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Kept:
    """What one container gave: its rows, and what was left out of it."""

    rows: list[Spooled]
    skipped: Skipped


@dataclass(frozen=True)
class ContainerRecords:
    """A folder with a record for each container that was read to its end.

    Attributes:
        folder: the folder.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path, *, key: str) -> ContainerRecords:
        """Open a folder, or make it.

        Args:
            folder: the folder.
            key: hash of how containers are read. What lies there under another key is removed.
        """
        stamp = folder / "key"
        if not stamp.is_file() or stamp.read_text() != key:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stamp.write_text(key)
        return cls(folder)

    def write(self, key: str, kept: Kept) -> None:
        """Record all rows of a container, in one step; several may at once."""
        record = self.path(key)
        temporary = record.with_name(f"{record.name}.{uuid.uuid4().hex}.tmp")
        with temporary.open("w", encoding="utf-8", errors="surrogatepass") as file:
            head = {"container": key, "num_rows": len(kept.rows)}
            file.write(json.dumps({**head, "skipped": asdict(kept.skipped)}) + "\n")
            file.writelines(json.dumps(_to_json(row)) + "\n" for row in kept.rows)
        temporary.replace(record)

    def read(self, key: str) -> Kept | None:
        """Give what was recorded of a container; None if it was not, or only in part."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            with self.path(key).open(encoding="utf-8", errors="surrogatepass") as file:
                head = json.loads(next(file, ""))
                rows = [_from_json(json.loads(line)) for line in file]
            if head["container"] == key and head["num_rows"] == len(rows):
                return Kept(rows, Skipped(**head["skipped"]))
        return None

    def num_rows(self, key: str) -> int | None:
        """Count the rows of a container by its record's first line; None if there is none."""
        try:
            with self.path(key).open(encoding="utf-8", errors="surrogatepass") as file:
                return int(json.loads(next(file, ""))["num_rows"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def forget_all_but(self, keys: Iterable[str]) -> None:
        """Remove what was recorded of other containers."""
        wanted = {self.path(key) for key in keys}
        for record in self.folder.glob("*.jsonl*"):
            if record not in wanted:
                record.unlink()

    def path(self, key: str) -> Path:
        """Give the place of a container's record."""
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.jsonl"


def without_data(item: Item) -> Item:
    """Give a picture without its bytes."""
    return Item(item.row, b"", item.label, item.split, item.path, item.group, item.reason)


def _to_json(row: Spooled) -> list[Any]:
    item = row.item
    facts = [item.row, item.label, item.split, item.path, item.group, item.reason]
    return [*facts, row.sha256.hex(), row.size_bytes, row.bucket, row.offset]


def _from_json(value: list[Any]) -> Spooled:
    row, label, split, path, group, reason, sha256, size_bytes, bucket, offset = value
    named = None if split is None else Split(split)
    item = Item(row, b"", label, named, path, group, reason)
    return Spooled(item, bytes.fromhex(sha256), size_bytes, bucket, offset)

"""What reaches disk or passes between rooms as data: frozen dataclasses, JSON, JSONL.

Files are written beside their place and renamed over it, so that a reader sees the old file or
the new one, never half of one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from stepladder.errors import DataError

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One Parquet file of a store."""

    name: str
    split: str
    num_rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a store holds. Has no time, host, engine or absolute path: same pictures, same bytes.

    Attributes:
        fingerprint: sha256 over everything else here; the store's identity.
        encoding: pixels or jpeg.
        size: height and width of a picture as the reader yields it, in pixels.
        fit: pad or crop.
        classes: class names; a label is an index into it.
        class_counts: for each split, pictures of each class, in the order of classes.
        channel_sum, channel_sq_sum: over all pixels of train, per channel R, G, B, as integers.
        num_pixels: pixels of train behind those sums.
        options: the prepare options that shape the bytes.
        versions: decoder and library versions that shape the bytes.
    """

    format_version: int = 1
    fingerprint: str = ""
    encoding: str
    size: int
    fit: str
    classes: tuple[str, ...]
    class_counts: dict[str, tuple[int, ...]]
    channel_sum: tuple[int, int, int]
    channel_sq_sum: tuple[int, int, int]
    num_pixels: int
    shards: tuple[ShardInfo, ...]
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def num_rows(self, split: str) -> int:
        """Count the pictures of a split (0 if the store has no such split)."""
        return sum(self.class_counts.get(split, ()))


def to_json(value: object) -> Any:  # noqa: PLR0911  (one line a kind of value)
    """Turn records, enums, paths and tuples into plain JSON; non-finite floats into strings."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return to_json(asdict(value))  # type: ignore[call-overload]
    return value


def fsync_dir(folder: Path) -> None:
    """Make renames and removals in a folder durable (a no-op where folders cannot be synced)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, keys in the order given, atomically and durably."""
    write_bytes(path, (json.dumps(to_json(value), indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: if it is missing or not JSON; names the file.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("the file does not exist", where=str(path)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"not valid JSON ({error})", where=str(path)) from None


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file; a half last line, as a kill leaves it, is passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(value, dict):
                yield value

"""JSON and JSONL files, and conversion of records to JSON.

Files are written to a temporary file and renamed, so that a reader sees the old file or the new
one, never a partial one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from stepladder.errors import DataError

_PLAIN = {str, int, bool, type(None)}
_NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def to_json(value: object) -> Any:  # noqa: PLR0911  (one return per type)
    """Convert records, enums, paths and tuples to plain JSON; non-finite floats to strings."""
    if type(value) in _PLAIN:  # most values
        return value
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
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    return value


def fsync_dir(folder: Path) -> None:
    """Sync renames and removals in a folder (a no-op if folders cannot be synced)."""
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


def fsync_file(handle: int) -> None:
    """Sync an open file to the disk (a no-op if the file system does not support it).

    Raises:
        OSError: if the disk fails.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            fsync_file(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, keys in the order given, atomically and durably."""
    write_bytes(path, (json.dumps(to_json(value), indent=2, allow_nan=False) + "\n").encode())


def write_unsynced(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically, but without waiting for the disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(to_json(value), indent=2), encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: if it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("the file does not exist", where=str(path), fix=_fix(path)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(
            f"the file is not valid JSON ({error})", where=str(path), fix=_fix(path)
        ) from None


def _fix(path: Path) -> str:
    return f"List all damaged files: stepladder verify {shlex.quote(str(path.parent))}"


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file; skip incomplete lines, such as those left by a kill."""
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

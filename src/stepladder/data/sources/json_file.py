"""Read the cells of JSON lines, such as `metadata.jsonl` of Hugging Face, or of a JSON array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stepladder.data.sources.csv_file import encoding_of
from stepladder.data.sources.table_cells import TableCells
from stepladder.errors import DataError

JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_EXAMPLE: Final = (
    'Write one line for each picture, such as {"file_name": "cat/1.jpg", "label": "cat"}'
)
_NUM_PROBE_BYTES: Final = 4096


def is_json(path: Path) -> bool:
    """Return True if a file begins like JSON: with an object, or an array of objects."""
    with path.open("rb") as file:
        start = file.read(_NUM_PROBE_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    is_array = start.startswith(b"[") and start[1:].lstrip()[:1] in {b"{", b"]", b""}
    is_named = path.suffix.lower() in JSON_SUFFIXES
    return (is_named and bool(start)) or start.startswith(b'{"') or is_array


def read_json(path: Path) -> TableCells:
    """Read one object per line, or an array of objects; their keys are the columns.

    A key that an object lacks, and null, are empty cells. A list of one label is that label.

    Raises:
        DataError: if it is not JSON, or not a list of objects; names the line.
    """
    try:
        text = path.read_text(encoding=encoding_of(path))
    except UnicodeError:
        raise DataError("not Unicode text", where=str(path), fix="Save it as UTF-8.") from None
    is_array = text.lstrip().startswith("[")
    numbered = list(_array(text, path) if is_array else _lines(text, path))
    unit = "item" if is_array else "line"
    for number, record in numbered:
        if not isinstance(record, dict):
            raise DataError(
                f"{type(record).__name__} in place of an object with keys",
                where=f"{path}: {unit} {number}",
                fix=_EXAMPLE,
            )
    header = list(dict.fromkeys(key for _, record in numbered for key in record))
    nested: dict[str, int] = {}
    for number, record in numbered:
        for key, value in record.items():
            if isinstance(_single(value), (dict, list)):
                nested.setdefault(key, number)
    body = [(number, [_cell(record.get(key)) for key in header]) for number, record in numbered]
    kind = "a JSON array" if is_array else "JSON lines"
    return TableCells(
        [key.strip() for key in header], body, 0, (f"{path}: read as {kind}",), unit, nested
    )


def _lines(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            _refuse_whole_object(text, path)
            raise DataError(
                f"not JSON ({error})", where=f"{path}: line {number}", fix=_EXAMPLE
            ) from None
        yield number, record
        if number == 1:
            _refuse_lists_of_objects(record, path)


def _array(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"not JSON ({error.msg})", where=f"{path}: line {error.lineno}", fix=_EXAMPLE
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error})", where=str(path), fix=_EXAMPLE) from None
    yield from enumerate(records, start=1)


def _refuse_whole_object(text: str, path: Path) -> None:
    """Raise an error if the file is a single object over several lines."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return
    raise _not_a_list(record, path)


def _refuse_lists_of_objects(record: Any, path: Path) -> None:
    """Raise an error if the first object is an index of a data set, such as COCO's."""
    if isinstance(record, dict) and isinstance(record.get("images"), list):
        raise _not_a_list(record, path)


def _not_a_list(record: Any, path: Path) -> DataError:
    keys = ", ".join(repr(key)[:40] for key in list(record)[:5])
    return DataError(f"one object with the keys {keys}", where=str(path), fix=_EXAMPLE)


def _single(value: Any) -> Any:
    """Return the only item of a list; else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _cell(value: Any) -> str:
    value = _single(value)
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

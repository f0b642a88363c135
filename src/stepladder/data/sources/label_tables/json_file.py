"""Read the cells of JSON lines, such as `metadata.jsonl` of Hugging Face, or of other JSON.

[{"path": "1.jpg", "label": "cat"}]           an array of objects
{"1.jpg": "cat", "2.jpg": "dog"}              an object of paths and labels
{"1.jpg": {"label": "cat"}}                   an object of paths and other columns
{"cat": ["1.jpg", "3.jpg"]}                   an object of labels and paths
{"path": ["1.jpg"], "label": ["cat"]}         an object of columns, as pandas writes it
[["1.jpg", 0, "cat"]]                         an array of arrays: path, number and label
{"train": …, "val": …}                        an object of splits of any of these
{"classes": ["cat"], "labels": {"1": 0}}      numbers of classes, as FiftyOne writes them
{"images": […], "annotations": […]}           COCO annotations
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.coco import is_coco, rows_of_coco
from stepladder.data.sources.label_tables.encodings import encoding_of, not_unicode
from stepladder.data.sources.label_tables.labels import LABEL_NAMES, plain_name
from stepladder.data.sources.label_tables.paths import PATH_NAMES, are_file_names, some
from stepladder.data.sources.splits.split_names import SPLIT_WORDS
from stepladder.errors import DataError

JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
EXAMPLE_LINE: Final = (
    'Write one line for each picture, such as {"file_name": "cat/1.jpg", "label": "cat"}'
)
_VIA: Final = "_via_img_metadata"  # the pictures of a project of the VGG Image Annotator
_OF_FIFTYONE: Final = frozenset({"classes", "labels"})
_NUM_PROBE_BYTES: Final = 4096
_COLUMNS: Final = frozenset({*PATH_NAMES, *LABEL_NAMES, "label"})


def is_json(path: Path) -> bool:
    """Return True if a file begins like JSON: with an object, or an array of objects."""
    with path.open("rb") as file:
        start = file.read(_NUM_PROBE_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    is_array = start.startswith(b"[") and start[1:].lstrip()[:1] in {b"{", b"]", b""}
    is_named = path.suffix.lower() in JSON_SUFFIXES
    return (is_named and bool(start)) or start.startswith(b'{"') or is_array


def read_json(path: Path) -> TableCells:
    """Read one object per line, an array of objects, or an object; their keys are the columns.

    A key that an object lacks, and null, are empty cells. A list of one label is that label.

    Raises:
        DataError: if it is not JSON, or not a list of objects; names the line.
    """
    encoding = encoding_of(path)
    try:
        text = path.read_text(encoding=encoding)
    except UnicodeError:
        raise not_unicode(path, encoding) from None
    is_array = text.lstrip().startswith("[")
    whole = None if is_array else _object(text, path)
    unit, kind = "item", "a JSON array"
    if whole is not None:
        kind, rows = whole
        numbered: list[tuple[int, Any]] = list(enumerate(rows, start=1))
    elif is_array:
        numbered = list(_array(text, path))
    else:
        numbered = list(_lines(text, path))
        unit, kind = "line", "JSON lines"
    arrays = _rows_of_arrays([record for _, record in numbered])
    if arrays is not None:
        numbered = [(number, row) for (number, _), row in zip(numbered, arrays, strict=True)]
    for number, record in numbered:
        if not isinstance(record, dict):
            raise DataError(
                f"{type(record).__name__} in place of an object with keys",
                where=f"{path}: {unit} {number}",
                fix=EXAMPLE_LINE,
            )
    header = list(dict.fromkeys(key for _, record in numbered for key in record))
    nested: dict[str, int] = {}
    for number, record in numbered:
        for key, value in record.items():
            if isinstance(_single(value), (dict, list)):
                nested.setdefault(key, number)
    body = [(number, [_cell(record.get(key)) for key in header]) for number, record in numbered]
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
            raise DataError(
                f"not JSON ({error})", where=f"{path}: line {number}", fix=EXAMPLE_LINE
            ) from None
        yield number, record
        if number == 1:
            _refuse_lists_of_objects(record, path)


def _array(text: str, path: Path) -> Iterator[tuple[int, Any]]:
    try:
        records = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"not JSON ({error.msg})", where=f"{path}: line {error.lineno}", fix=EXAMPLE_LINE
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON ({error})", where=str(path), fix=EXAMPLE_LINE) from None
    yield from enumerate(records, start=1)


def _object(text: str, path: Path) -> tuple[str, list[dict[str, Any]]] | None:
    """Return what a single object is read as, and its rows; None if it is a line of a picture."""
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if found.setdefault(key, value) != value:
                repeated.append(key)
        return found

    try:
        record = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return None  # several lines
    if not isinstance(record, dict) or not record:
        return None
    if _is_picture(record) and not repeated:
        if "\n" in text.strip():
            raise _not_a_list(record, path)
        return None
    if repeated:
        raise DataError(
            f"the key {repeated[0]!r:.80} is there twice, with different values",
            where=str(path),
            fix="Keep one of them.",
        )
    return _rows_of_pictures(record, path)


def _rows_of_pictures(record: Mapping[str, Any], path: Path) -> tuple[str, list[dict[str, Any]]]:
    if isinstance(record.get("labels"), dict) and record.keys() <= _OF_FIFTYONE:
        return _rows_of_numbers(record, path)
    found = rows_of_coco(record, path) if is_coco(record) else _rows_of(record)
    if found is None:
        raise _not_a_list(record, path)
    return found


def _rows_of_numbers(record: Mapping[str, Any], path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the rows of FiftyOne's labels: numbers of classes, or names, by the pictures' names.

    Source: Voxel51, "FiftyOne User Guide", FiftyOneImageClassificationDataset.
    """
    classes = record.get("classes") or []

    def name(value: Any) -> Any:
        value = value.get("label") if isinstance(value, dict) else _single(value)
        if isinstance(value, list):
            return "|".join(str(name(one)) for one in value)
        if isinstance(value, int) and not isinstance(value, bool) and classes:
            if not 0 <= value < len(classes):
                raise DataError(
                    f"the number {value} of a class, but there are {len(classes)} classes",
                    where=str(path),
                    fix="Correct the number, or add the class to the list of classes.",
                )
            return classes[value]
        return value

    rows = [{"path": key, "label": name(value)} for key, value in record["labels"].items()]
    return "FiftyOne's labels of images", rows


def _is_picture(record: Mapping[str, Any]) -> bool:
    """Return whether an object describes a single picture: keys of columns, and no columns."""
    is_flat = not any(isinstance(value, (list, dict)) for value in record.values())
    return (
        (is_flat and bool(_COLUMNS & {plain_name(key) for key in record}))
        or any(isinstance(record.get(key), str) for key in PATH_NAMES)
        or (is_flat and len(record) == 1 and not are_file_names(list(record)))
    )


def _rows_of(record: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]] | None:
    """Return what an object of several pictures is read as, and its rows; None if it is another."""
    if isinstance(record.get(_VIA), dict) and record[_VIA]:
        return _rows_of_objects(record[_VIA])
    keys, values = list(record), list(record.values())
    if all(key.lower() in SPLIT_WORDS for key in keys):
        return _rows_of_splits(record)
    if all(isinstance(value, dict) for value in values):
        return _rows_of_objects(record)
    has_paths = are_file_names(some(keys))
    if all(isinstance(value, list) for value in values) and not has_paths:
        return _rows_of_lists(record)
    if any(
        isinstance(value, dict) or (isinstance(value, list) and not has_paths) for value in values
    ):
        return None
    rows = [{"path": key, "label": value} for key, value in record.items()]
    return "a JSON object of paths and labels", rows


def _rows_of_splits(record: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]] | None:
    rows: list[dict[str, Any]] = []
    for split, value in record.items():
        found = _rows_of(value) if isinstance(value, dict) and value else None
        records: list[Any] = value if isinstance(value, list) else found[1] if found else [None]
        records = _rows_of_arrays(records) or records
        if not all(isinstance(row, dict) for row in records):
            return None
        rows += [{"split": split, **row} for row in records]
    return "a JSON object of splits", rows


def _rows_of_arrays(records: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Return the rows of arrays such as ["1.jpg", 0, "cat"]; None if they are others.

    One column has names of pictures. Of the others, text is the label rather than a number.
    """
    if not all(isinstance(one, list) for one in records):
        return None
    widths = {len(one) for one in records}
    if len(widths) != 1 or any(isinstance(cell, (list, dict)) for one in records for cell in one):
        return None
    columns = list(zip(*records, strict=True))
    paths = [at for at, cells in enumerate(columns) if are_file_names(list(map(str, some(cells))))]
    others = [at for at in range(len(columns)) if at not in paths]
    texts = [at for at in others if all(isinstance(cell, str) for cell in columns[at])]
    if len(paths) != 1 or not others:
        return None
    names = [f"column{at + 1}" for at in range(len(columns))]
    names[paths[0]] = "path"
    if len(texts) == 1 or len(others) == 1:
        names[(texts or others)[0]] = "label"
    return [dict(zip(names, one, strict=True)) for one in records]


def _rows_of_lists(record: Mapping[str, list[Any]]) -> tuple[str, list[dict[str, Any]]] | None:
    keys, values = list(record), list(record.values())
    is_even = len(set(map(len, values))) == 1
    is_flat = not any(isinstance(one, dict) for cells in values for one in cells)
    if {plain_name(key) for key in keys} & set(PATH_NAMES) and is_even and is_flat:
        turned = [dict(zip(keys, cells, strict=True)) for cells in zip(*values, strict=True)]
        return "a JSON object of columns", turned
    pairs = [(label, one) for label, paths in record.items() for one in paths]
    if not pairs or not all(isinstance(one, str) for _, one in pairs):
        return None
    rows = [{"path": one, "label": label} for label, one in pairs]
    return "a JSON object of labels and their paths", rows


def _rows_of_objects(
    record: Mapping[str, Mapping[str, Any]],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the rows of an object of objects: by path or number, or columns as pandas writes."""
    names = {plain_name(key) for key in record}
    first = next(iter(record.values()))
    if names & set(PATH_NAMES) and all(value.keys() == first.keys() for value in record.values()):
        turned = [{key: value[at] for key, value in record.items()} for at in first]
        return "a JSON object of columns", turned
    has_paths = any(plain_name(key) in PATH_NAMES for key in first)
    if has_paths and not are_file_names(some(list(record))):
        return "a JSON object of objects", [dict(value) for value in record.values()]
    rows = [{**value, "path": key} for key, value in record.items()]
    return "a JSON object of paths and objects", rows


def _refuse_lists_of_objects(record: Any, path: Path) -> None:
    """Raise an error if the first object is an index of a data set, such as COCO's."""
    if isinstance(record, dict) and isinstance(record.get("images"), list):
        raise _not_a_list(record, path)


def _not_a_list(record: Any, path: Path) -> DataError:
    keys = ", ".join(repr(key)[:40] for key in list(record)[:5])
    has_splits = all(str(key).lower() in SPLIT_WORDS for key in record)
    fix = EXAMPLE_LINE.replace("}", ', "split": "train"}') if has_splits else EXAMPLE_LINE
    return DataError(f"one object with the keys {keys}", where=str(path), fix=fix)


def _single(value: Any) -> Any:
    """Return the only item of a list; else the value."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _cell(value: Any) -> str:
    value = _single(value)
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half a character, as in "\ud83d"
        text = text.encode(errors="replace").decode()
    return text

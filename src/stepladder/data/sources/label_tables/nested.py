"""Find paths and labels inside nested values, as annotation tools write them, and write them out.

Labelbox, Label Studio, V7 and Scale export objects within lists within objects; VIA writes JSON
into the cells of a CSV.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stepladder.data.sources.label_tables.by_name import Nearby
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.edits import cells_command, copy_command
from stepladder.data.sources.label_tables.json_file import read_json
from stepladder.data.sources.label_tables.labels import (
    is_number,
    label_names,
    other_names,
    plain_name,
    words_of,
)
from stepladder.data.sources.label_tables.paths import PathReader
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

Keys = tuple[str | int, ...]
"""Keys of objects and indices of lists that lead to a value."""
_MAX_ROWS: Final = 500  # whose values are compared
_MAX_LEAVES: Final = 1000  # values of a row
_MAX_QUESTIONS: Final = 20  # in a list; of longer ones, as of points, two items are enough
_MAX_DEPTH: Final = 20
_MAX_LABELS: Final = 3
_MAX_KEYS: Final = 8  # in a message
_MAX_LETTERS: Final = 60
_MIN_ROWS: Final = 3  # that show that a value repeats
_MIN_FRAC: Final = 0.9  # of rows that have a label
_ANSWERS: Final = frozenset(
    {"answer", "choice", "choices", "value", "response", "result", "label", "labels", "class"}
    | {"classes", "classification", "classifications", "category", "tag", "tags"}
)
"""Words in the keys around the label of an annotation tool."""
_COUNT: Final = re.compile(r"[-+0-9.]{1,6}|[-+0-9]*\.[0-9]+")
"""A number that is no name of a picture."""
_FACT: Final = re.compile(r"[^@\s]+@[^@\s]+|\d{4}-\d\d-\d\d.*|\w+://.*|[0-9a-f-]{16,}")
"""Text that is no label: an address, a date, an id."""


def parse_object(cell: str) -> dict[str, Any] | None:
    """Return the object of a cell with JSON; None if it is other text."""
    text = cell.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def records_of(file: TableCells, max_rows: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a JSON file as objects, with what is nested in them."""
    return [
        {
            name: _parsed(cell) if name in file.nested else cell
            for name, cell in zip(file.header, cells, strict=True)
        }
        for _, cells in file.body[:max_rows]
    ]


def _parsed(cell: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def leaves_of(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, str]]:
    """Yield the texts and numbers within a value, and what leads to them."""
    if isinstance(value, dict):
        ticked = [key for key, one in value.items() if one is True]
        if keys and len(value) == len(ticked) == 1:  # a checkbox of VIA
            yield keys, ticked[0]
            return
        pairs: list[tuple[str | int, Any]] = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value if len(value) <= _MAX_QUESTIONS else value[:2]))
    else:
        if isinstance(value, (str, int, float)) and str(value).strip():
            yield keys, value if isinstance(value, str) else json.dumps(value)
        return
    for key, one in pairs if len(keys) < _MAX_DEPTH else []:
        yield from leaves_of(one, (*keys, key))


def value_at(value: Any, keys: Sequence[str | int]) -> str:
    """Return the text or number that keys lead to; empty text if they lead nowhere."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        else:
            is_item = isinstance(value, list) and isinstance(key, int) and key < len(value)
            value = value[key] if is_item else None
    return next((text for keys, text in leaves_of(value, ("",)) if keys == ("",)), "")


def value_of(cell: str, keys: Sequence[str | int]) -> str:
    """Return what keys lead to in the JSON object of a cell; empty text if they lead nowhere."""
    return value_at(parse_object(cell) or {}, keys)


def label_keys(records: Sequence[Mapping[str, Any]]) -> list[Keys]:
    """Return the keys of values that may be labels, the likeliest first.

    Their values vary and repeat. A list with several items in a row has several labels, unless
    each of its items always has the same name, as questions have.
    """
    rows = [dict(itertools.islice(leaves_of(one), _MAX_LEAVES)) for one in records[:_MAX_ROWS]]
    found: dict[tuple[int, ...], tuple[tuple[object, ...], Keys]] = {}
    several = _several(rows)
    for keys in dict.fromkeys(keys for row in rows for keys in row):
        texts = [row[keys].strip() for row in rows if keys in row]
        counts = Counter(texts)
        if (
            len(counts) < 2
            or len(texts) < _MIN_FRAC * len(rows)
            or (2 * len(counts) > len(texts) + 1 and len(texts) >= _MIN_ROWS)
            or any(keys[:at] in several for at in range(1, len(keys)))
            or all(map(_FACT.fullmatch, counts))
        ):
            continue
        names = [key for key in keys if isinstance(key, str)]
        if not other_names(names[-1:]) and not any(label_names(names[-1:])):
            continue
        first: dict[str, int] = {}
        same = tuple(first.setdefault(row.get(keys, ""), len(first)) for row in rows)
        rank = (
            not any(label_names(names[-1:])),
            not any(_ANSWERS & set(words_of(name)) for name in names),
            all(map(is_number, counts)),
            {text.lower() for text in counts} <= {"yes", "no", "true", "false"},
            len(counts),
            plain_name(names[-1]) != "name",
        )
        if same not in found or rank < found[same][0]:
            found[same] = rank, keys
    return [keys for _, keys in sorted(found.values(), key=lambda one: one[0])][:_MAX_LABELS]


def _several(rows: Sequence[Mapping[Keys, str]]) -> set[Keys]:
    """Return the keys of items of lists that have several items without names of their own."""
    sizes: dict[Keys, int] = defaultdict(int)
    for row in rows:
        for keys in row:
            for at, key in enumerate(keys):
                if isinstance(key, int):
                    sizes[keys[:at]] = max(sizes[keys[:at]], key + 1)
    below: dict[Keys, set[Keys]] = defaultdict(set)
    for keys in {keys for row in rows for keys in row}:
        below[keys[:-1]].add(keys)
    several: set[Keys] = set()
    for place, size in sizes.items():
        if size == 1:
            continue
        own = [
            {
                keys[-1]: texts
                for keys in below[(*place, at)]
                if len(texts := {row.get(keys, "") for row in rows}) == 1
            }
            for at in range(size)
        ]
        shared = set.intersection(*(set(one) for one in own))
        if not any(len({min(one[key]) for one in own}) == size for key in shared):
            several |= {(*place, at) for at in range(size)}
    return several


def path_keys(records: Sequence[Mapping[str, Any]], nearby: Nearby) -> Keys | None:
    """Return the keys of the values that name pictures here; None if most rows have no such."""
    pictures: dict[Keys, set[str]] = defaultdict(set)
    looked_at = records[:_MAX_ROWS]
    for record in looked_at:
        for keys, text in itertools.islice(leaves_of(record), _MAX_LEAVES):
            if not _COUNT.fullmatch(text) and (picture := nearby.picture_of(text)) is not None:
                pictures[keys].add(picture)
    hits = {keys: len(found) for keys, found in pictures.items()}
    best = max(hits, key=lambda keys: (hits[keys], -len(keys)), default=None)
    return best if best is not None and 2 * hits[best] >= len(looked_at) else None


def name_keys(keys: Sequence[str | int]) -> str:
    """Return keys as they are typed in Python, such as `data_row.labels[0].name`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def refuse_nested_rows(reading: TableReading, nearby: Nearby, *, is_label_nested: bool) -> None:
    """Refuse JSON whose paths or labels are nested; the commands write them out.

    Args:
        reading: the table.
        nearby: the pictures here.
        is_label_nested: refuse it only if the likeliest label is nested.

    Raises:
        DataError: if values name pictures here, and others may be labels.
    """
    if not reading.file.nested:
        return
    records = records_of(reading.file, _MAX_ROWS)
    path = path_keys(records, nearby)
    labels = [keys for keys in label_keys(records) if keys != path]
    is_nested = bool(labels) and len(labels[0]) > 1
    if path is None or not labels or (is_label_nested and not is_nested):
        return
    shown = [f"{name_keys(keys)!r}, such as {_example(records, keys)}" for keys in labels]
    commands = [_rows_command(reading, path, keys) for keys in labels]
    fixes = [
        f"To learn {name_keys(keys)!r}: {command}"
        for keys, command in zip(labels, commands, strict=True)
    ]
    raise DataError(
        f"{'' if len(path) == 1 else 'paths and '}labels are within nested values: "
        f"{name_keys(path)!r} names pictures here, "
        f"such as {_example(records, path)}; a label may be {' or '.join(shown)}",
        where=str(reading.path),
        fix="\n".join(fixes),
    )


def describe_nested(reading: TableReading) -> str:
    """Return a sentence about the nested values of a table; empty text if it has no such values."""
    if not reading.file.nested:
        return ""
    first = next(iter(records_of(reading.file, 1)), {})
    found = [(keys, text) for keys, text in leaves_of(first) if len(keys) > 1]
    shown = [f"{name_keys(keys)} ({printable(text)[:_MAX_LETTERS]!r})" for keys, text in found]
    more = f" and {len(shown) - _MAX_KEYS} more" if len(shown) > _MAX_KEYS else ""
    return f". Nested values: {name_some(shown[:_MAX_KEYS])}{more}" if shown else ""


def refuse_objects(
    reading: TableReading, columns: TableColumns, reader: PathReader, ats: Sequence[int]
) -> None:
    """Refuse columns with a JSON object in each cell; the commands learn one of the values.

    Args:
        reading: the table.
        columns: those of paths and splits.
        reader: how paths name files.
        ats: the columns that may hold such cells.

    Raises:
        DataError: if some do.
    """
    header = reading.file.header
    objects = {
        at: [parse_object(cells[at]) or {} for _, cells in reading.file.body]
        for at in ats
        if header[at] not in reading.file.nested
        and any(parse_object(cell) for cell in reading.cells(at)[:_MAX_ROWS])
    }
    objects = {at: some for at, some in objects.items() if 2 * sum(map(bool, some)) >= len(some)}
    if not objects:
        return
    records = [
        {str(at): some[k] for at, some in objects.items()} for k in range(len(reading.file.body))
    ]
    labels = label_keys(records)
    at = int(labels[0][0]) if labels else next(iter(objects))
    keys = dict.fromkeys(name_keys(one) for row in objects[at] for one, _ in leaves_of(row))
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    shown = name_some([repr(printable(key)) for key in list(keys)[:_MAX_KEYS]])
    example = printable(next(one for one in reading.cells(at) if parse_object(one)))
    what = (
        f"column {header[at]!r} holds JSON objects, such as {example[:_MAX_LETTERS]!r}, with the "
        f"values {shown}{more}"
    )
    fixes = []
    for one in labels:
        chosen = TableColumns(columns.path, int(one[0]), columns.split)
        command = cells_command(
            reading, int(one[0]), _getter(one[1:]), "labels", reading.options(chosen, reader)
        )
        if command:
            example = _example(records, one)
            fixes.append(f"To learn {name_keys(one[1:])!r}, such as {example}: {command}")
    raise DataError(
        what if labels else f"{what}; none of them varies and repeats as labels do",
        where=str(reading.path),
        fix="\n".join(fixes) or "Write the class of each picture as text into a column of its own.",
    )


def _getter(keys: Keys) -> str:
    """Return a function in Python: of a cell with an object, the text that keys lead to."""
    module = f'__import__({json.dumps(__name__)},fromlist=["value_of"])'
    return f"lambda c:{module}.value_of(c,{json.dumps(keys)})"


def _rows_command(reading: TableReading, path: Keys, label: Keys) -> str:
    script = (
        f"import sys;from {__name__} import write_rows;"
        f"write_rows(sys.argv[1],sys.argv[2],{json.dumps(path)},{json.dumps(label)})"
    )
    command = copy_command(reading, f"python -c {shlex.quote(script)}", "rows")
    group = reading.config.group_by
    return command if group is None else f"{command} --group-by {shlex.quote(group)}"


def _example(records: Sequence[Mapping[str, Any]], keys: Keys) -> str:
    texts = (value_at(record, keys) for record in records)
    return repr(printable(next(text for text in texts if text))[:_MAX_LETTERS])


def write_rows(
    source: str, copy: str, path: Sequence[str | int], label: Sequence[str | int]
) -> None:
    """Write the paths and labels of a nested JSON file as JSON lines.

    Args:
        source: the file.
        copy: the file to write.
        path, label: keys of the values. The name of a picture becomes its path, if it is here.
            Records without a label, such as tasks that nobody has annotated, are left out.
    """
    file = read_json(Path(source))
    nearby = Nearby(Path(source).parent.resolve())
    lines = []
    records = list(records_of(file))
    for record in records:
        if not (text := value_at(record, label)):
            continue
        cell = value_at(record, path)
        flat = {name: one for name, one in record.items() if name not in file.nested}
        row = {**flat, "path": nearby.picture_of(cell) or cell, "label": text}
        lines.append(json.dumps(row) + "\n")
    if num := len(records) - len(lines):
        sys.stderr.write(f"{num} of {len(records)} records have no label, and are left out\n")
    Path(copy).write_text("".join(lines), encoding="utf-8")

"""Read a CSV of pictures; errors name the row and the column."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from stepladder.errors import DataError

_OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_MAX_ROWS_NAMED = 5
_SAVE_AGAIN = "Save it as a comma-separated file; put cells with commas or quotes in double quotes."
_WANTED = "Write a header row such as path,label, then one row for each picture."
_ALSO_NAMED = {
    "path": ("file", "filename", "file_name", "filepath", "file_path", "image", "image_path"),
    "label": ("class", "class_name", "category", "target"),
}
_PICTURE_ENDS = (".jpg", ".jpeg", ".png")
_NO_VALUE = frozenset({"nan", "<na>"})  # how pandas writes missing values


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one picture; split and group are None if the table has no such column.

    Attributes:
        number: line number in the file; the header is row 1.
    """

    number: int
    path: str
    label: str
    split: str | None
    group: str | None


@dataclass(frozen=True)
class Table:
    """All rows, and whether the table has the group column."""

    rows: list[Row]
    has_group: bool


def read_table(
    path: Path,
    *,
    path_column: str,
    label_column: str,
    split_column: str,
    group_column: str | None,
) -> Table:
    """Read the columns of a CSV that prepare needs; accepts a byte-order mark and CRLF.

    Raises:
        DataError: if the table is invalid; names the file, the rows and the column.
    """
    header, body = _read_rows(path)
    if not header:
        raise DataError("the table is empty", where=str(path), fix=_WANTED)
    named = {path_column, label_column, split_column, group_column}
    path_at = _column(header, path_column, option="path-column", path=path, named=named)
    label_at = _column(header, label_column, option="label-column", path=path, named=named)
    split_at = header.index(split_column) if split_column in header else None
    group_at = header.index(group_column) if group_column in header else None
    if not body:
        raise DataError("the table has a header but no rows", where=str(path), fix=_WANTED)
    _check_rows(body, header, path=path)
    _check_filled(body, header, [path_at, label_at], path=path)
    if split_at is not None and all(_is_empty(cells[split_at]) for _, cells in body):
        split_at = None  # an empty column is ignored
    _check_filled(body, header, [at for at in (split_at, group_at) if at is not None], path=path)
    rows = [
        Row(
            number,
            cells[path_at],
            cells[label_at].strip(),
            None if split_at is None else cells[split_at].strip(),
            None if group_at is None else cells[group_at].strip(),
        )
        for number, cells in body
    ]
    return Table(rows, group_at is not None)


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header, and the row number and cells of each row."""
    header: list[str] = []
    body: list[tuple[int, list[str]]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip() for name in next(reader, [])]
            body += ((reader.line_num, cells) for cells in reader if cells)
    except UnicodeDecodeError:
        row = _first_row_not_utf8(path.read_bytes())
        raise DataError(
            "not UTF-8 text", where=f"{path}: row {row}", fix="Save it as UTF-8."
        ) from None
    except csv.Error as error:
        after = body[-1][0] if body else int(bool(header))
        raise DataError(
            f"not a CSV ({error})", where=f"{path}: row {after + 1}", fix=_SAVE_AGAIN
        ) from None
    return header, body


def _first_row_not_utf8(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    return 1


def _column(
    header: Sequence[str], name: str, *, option: str, path: Path, named: Set[str | None]
) -> int:
    """Return the index of a column; if it is missing, the error suggests an unused one."""
    if header.count(name) == 1:
        return header.index(name)
    if name in header:
        raise DataError(
            f"two columns are named {name!r}",
            where=f"{path}: row 1",
            fix=f"Rename one of them, or choose another column: --{option} NAME",
        )
    for delimiter, word in _OTHER_DELIMITERS.items():
        if len(header) == 1 and delimiter in header[0]:
            raise DataError(
                f"no column {name!r}: the cells are separated by {word}, not commas",
                where=f"{path}: row 1",
                fix="Save it as a comma-separated file.",
            )
    if any(cell.lower().endswith(_PICTURE_ENDS) for cell in header):
        raise DataError(
            f"no column {name!r}: the first row describes a picture; it is not a header",
            where=f"{path}: row 1",
            fix=_WANTED,
        )
    others = [column for column in header if column not in named]
    near = [column for column in others if column.lower() in _ALSO_NAMED.get(name, ())]
    near += difflib.get_close_matches(name, others, n=1, cutoff=0.5)
    near += others if len(others) == 1 else []
    shown = ", ".join(repr(column) for column in header)
    raise DataError(
        f"no column {name!r} among {shown}",
        where=f"{path}: row 1",
        fix=f"Name the column: --{option} {near[0] if near else 'COLUMN'}",
    )


def _check_rows(body: list[tuple[int, list[str]]], header: list[str], *, path: Path) -> None:
    wrong = [(number, len(cells)) for number, cells in body if len(cells) != len(header)]
    if wrong:
        raise DataError(
            f"wrong number of cells in {_name_rows([number for number, _ in wrong])}: "
            f"the header has {len(header)}, row {wrong[0][0]} has {wrong[0][1]}",
            where=str(path),
            fix="Put quotes around cells that contain a comma.",
        )


def _check_filled(
    body: list[tuple[int, list[str]]], header: list[str], columns: list[int], *, path: Path
) -> None:
    for column in columns:
        empty = [number for number, cells in body if _is_empty(cells[column])]
        if empty:
            raise DataError(
                f"column {header[column]!r} is empty in {_name_rows(empty)}",
                where=str(path),
                why="NaN counts as empty.",
                fix="Fill in these cells or remove the rows.",
            )


def _is_empty(cell: str) -> bool:
    text = cell.strip()
    return not text or text.lower() in _NO_VALUE


def _name_rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:_MAX_ROWS_NAMED])
    if len(numbers) == 1:
        return f"row {shown}"
    return f"{len(numbers)} rows: {shown}" + (", …" if len(numbers) > _MAX_ROWS_NAMED else "")

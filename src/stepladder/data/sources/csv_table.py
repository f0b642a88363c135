"""List the pictures of a CSV; errors name the row, the column, and what to type."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.csv_file import CsvFile, read_csv
from stepladder.data.sources.listing import Listing, Picture
from stepladder.data.sources.split_names import SPLIT_WORDS, split_of_cell
from stepladder.data.sources.walk import Skipped, printable
from stepladder.errors import DataError, UsageError

_MAX_ROWS_NAMED: Final = 5
_MAX_LOOKED_AT: Final = 50  # paths whose files are looked for before any is read
_MAX_FOLDERS_TRIED: Final = 50
_WANTED: Final = "Write a header row such as path,label, then one row for each picture."
ALSO_NAMED: Final = {
    "path": ("file", "filename", "file_name", "filepath", "file_path", "image", "image_path"),
    "label": ("class", "class_name", "category", "target"),
}
"""Other usual names of the columns."""
_PICTURE_ENDS: Final = tuple(sorted(PICTURE_SUFFIXES))
_NO_VALUE: Final = frozenset({"nan", "<na>"})  # how pandas writes missing values
_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_SLOT: Final = "{}"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of one picture; split and group are None if the table has no such column."""

    number: int
    path: str
    label: str
    split: str | None
    group: str | None


def list_table(path: Path, config: PrepareConfig) -> Listing:
    """List the pictures of a CSV; relative paths are relative to its folder.

    Raises:
        UsageError: if an option for it has a bad value.
        DataError: if the table is invalid, or none of its files exists; names the file, the rows
            and the column.
    """
    root = path.parent.resolve()
    table = _read_table(path, config)
    to_path, notes = _path_reader(table, root, config.path_format)
    relative_to_root = _Relative(root)
    pictures: dict[str, Picture] = {}
    first_row: dict[str, int] = {}
    num_repeated = 0
    for row in table.rows:
        where = f"{path}: row {row.number}"
        split = None if row.split is None else split_of_cell(row.split, where)
        relative = relative_to_root(to_path(row.path))
        picture = Picture(relative, row.label, split, row.group)
        if relative not in pictures:
            pictures[relative] = picture
            first_row[relative] = row.number
        elif pictures[relative] == picture:
            num_repeated += 1
        else:
            raise DataError(
                f"rows {first_row[relative]} and {row.number} have different labels, splits or "
                f"groups for {row.path!r}",
                where=str(path),
                fix="Keep one row for each picture.",
            )
    _check_files(path, root, table, [to_path(row.path) for row in _some(table.rows)])
    warnings = [*table.notes, *(f"{path}: {note}" for note in notes)]
    if num_repeated:
        warnings.append(f"{path}: skipped {num_repeated} repeated rows")
    return Listing(root, list(pictures.values()), Skipped(), tuple(warnings), table.has_group)


@dataclass(frozen=True)
class _Table:
    """All rows, and whether the table has the group column."""

    rows: list[_Row]
    has_group: bool
    notes: tuple[str, ...]


def _read_table(path: Path, config: PrepareConfig) -> _Table:
    """Read the columns that prepare needs."""
    columns = _given_columns(config.columns)
    wanted = (config.path_column, config.label_column)
    file = read_csv(path, wanted=wanted, columns=columns)
    if not file.header:
        raise DataError("the table is empty", where=str(path), fix=_WANTED)
    where = f"{path}: row {file.header_line}"
    find = _Columns(file, where, {*wanted, config.split_column, config.group_by})
    path_at = find(config.path_column, option="path-column")
    label_at = find(config.label_column, option="label-column")
    split_at = find.optional(config.split_column)
    group_at = find.optional(config.group_by)
    body = file.body
    if not body:
        raise DataError("the table has a header but no rows", where=str(path), fix=_WANTED)
    _check_rows(file, path=path)
    _check_filled(file, [path_at, label_at], path=path)
    if split_at is not None and all(_is_empty(cells[split_at]) for _, cells in body):
        split_at = None  # an empty column is ignored
    _check_filled(file, [at for at in (split_at, group_at) if at is not None], path=path)
    rows = [
        _Row(
            number,
            cells[path_at],
            cells[label_at].strip(),
            None if split_at is None else cells[split_at].strip(),
            None if group_at is None else cells[group_at].strip(),
        )
        for number, cells in body
    ]
    return _Table(rows, group_at is not None, file.notes)


def _given_columns(text: str | None) -> list[str] | None:
    """Parse the value of --columns."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"{text!r} has an empty or a repeated name",
            where="prepare.columns",
            fix="Name every column of the table once, such as --columns path,label",
        )
    return names


@dataclass(frozen=True)
class _Columns:
    """Finds columns by name.

    Attributes:
        file: the table.
        where: file and line of its header, for messages.
        named: columns that have a meaning already.
    """

    file: CsvFile
    where: str
    named: Set[str | None]

    def optional(self, name: str | None) -> int | None:
        """Return the index of a column, or None if no column has the name."""
        header = self.file.header
        return header.index(name) if name is not None and name in header else None

    def __call__(self, name: str, *, option: str) -> int:
        """Return the index of a column; if it is missing, the error suggests an unused one."""
        header = self.file.header
        if header.count(name) == 1:
            return header.index(name)
        if name in header:
            raise DataError(
                f"two columns are named {name!r}",
                where=self.where,
                fix=f"Rename one of them, or choose another column: --{option} NAME",
            )
        if self._is_first_row_a_picture():
            raise DataError(
                f"no column {name!r}: the first row describes a picture; there is no header",
                where=self.where,
                fix=f"Name the columns: --columns {','.join(_guess_columns(header))}",
            )
        others = [column for column in header if column and column not in self.named]
        near = [column for column in others if column.lower() in ALSO_NAMED.get(name, ())]
        near += difflib.get_close_matches(name, others, n=1, cutoff=0.5)
        near += others if len(others) == 1 else []
        shown = ", ".join(repr(column) for column in header)
        raise DataError(
            f"no column {name!r} among {shown}",
            where=self.where,
            fix=f"Name the column: --{option} {shlex.quote(near[0]) if near else 'COLUMN'}",
        )

    def _is_first_row_a_picture(self) -> bool:
        """Return whether the header is a row: it names a picture, or repeats in a column."""
        header = self.file.header
        if self.file.header_line == 0:
            return False
        if any(cell.lower().endswith(_PICTURE_ENDS) for cell in header):
            return True
        rows = [cells for _, cells in self.file.body if len(cells) == len(header)]
        return any(
            cell and any(cells[at].strip() == cell for cells in rows)
            for at, cell in enumerate(header)
        )


def _guess_columns(cells: Sequence[str]) -> list[str]:
    """Guess names for the columns of a table from its first row."""
    path_at = next((at for at, cell in enumerate(cells) if cell.lower().endswith(_PICTURE_ENDS)), 0)
    names = [f"column{at + 1}" for at in range(len(cells))]
    names[path_at] = "path"
    for at, cell in enumerate(cells):
        if at != path_at and cell.lower() in SPLIT_WORDS:
            names[at] = "split"
    label_at = [at for at, name in enumerate(names) if name.startswith("column")]
    if label_at:
        names[label_at[0]] = "label"
    return names


def _path_reader(
    table: _Table, root: Path, path_format: str | None
) -> tuple[_PathReader, list[str]]:
    """Return a function from a cell to a path, and notes on how paths are read."""
    if path_format is not None and path_format.count(_SLOT) != 1:
        raise UsageError(
            f"{path_format!r} does not contain {_SLOT} once",
            where="prepare.path_format",
            fix=f"Write {_SLOT} where the cell goes, such as --path-format 'images/{_SLOT}.jpg'",
        )
    read = _PathReader(path_format or _SLOT, has_backslashes=False)
    with_backslash = [row.path for row in table.rows if "\\" in row.path]
    if not with_backslash or any((root / read(cell)).exists() for cell in _some(with_backslash)):
        return read, []
    read = _PathReader(path_format or _SLOT, has_backslashes=True)
    return read, ["read the backslashes in paths as separators of folders"]


@dataclass(frozen=True)
class _PathReader:
    """Turns a cell into a path."""

    path_format: str
    has_backslashes: bool

    def __call__(self, cell: str) -> str:
        path = cell.replace("\\", "/") if self.has_backslashes else cell
        return path if self.path_format == _SLOT else self.path_format.replace(_SLOT, path)


def _some(items: Sequence[_T]) -> list[_T]:
    """Return at most 50 items, evenly spaced."""
    step = max(1, len(items) // _MAX_LOOKED_AT)
    return list(items[::step][:_MAX_LOOKED_AT])


def _check_files(path: Path, root: Path, table: _Table, looked_at: list[str]) -> None:
    """Check that at least one of some paths exists; else say which path does.

    Raises:
        DataError: if none exists.
    """
    if any(os.path.lexists(root / found) for found in looked_at):
        return
    first, row = looked_at[0], table.rows[0]
    is_address = _ADDRESS.match(first) is not None
    problem = (
        f"{printable(first)!r} is an address, not a path"
        if is_address
        else (f"no picture {printable(first)!r} in {root}")
    )
    for exists, why, fix in _near(root, first, row.path, path):
        problem += f": {printable(exists)} exists{why}"
        raise DataError(problem, where=f"{path}: row {row.number}", fix=fix)
    if is_address:
        fix = "Download the pictures, and write their paths into the table."
    else:
        fix = (
            "Paths are relative to the table's folder. If they lack a folder or an ending, add it: "
            "--path-format 'FOLDER/{}.jpg'"
        )
    raise DataError(problem, where=f"{path}: row {row.number}", fix=fix)


def _near(root: Path, path: str, cell: str, table: Path) -> Iterator[tuple[str, str, str]]:
    """Yield existing paths that a cell may mean: the path, what differs, and what to type."""
    endings = ("", *_PICTURE_ENDS, *(ending.upper() for ending in _PICTURE_ENDS))
    folders = ["", *_folders_in(root)]
    for folder in folders:
        for ending in endings:
            name = f"{folder}{path}{ending}"
            if not path.startswith("/") and name != path and (root / name).is_file():
                lacks = "the ending is missing" if ending else "the folder is missing"
                both = "the folder and the ending are missing" if ending and folder else lacks
                shape = f"{folder}{_SLOT}{ending}"
                yield name, f", {both}", f"Add it: --path-format {shlex.quote(shape)}"
    if path.startswith("/") and (root / path.lstrip("/")).is_file():
        found = path.lstrip("/")
        yield found, ", the path begins with a slash", f"Add a dot: --path-format '.{_SLOT}'"
    parts = path.split("/")
    for at in range(1, len(parts)):
        rest = "/".join(parts[at:])
        if rest and (root / rest).is_file():
            cut = cell[: len(cell) - len(rest)]
            pattern = re.sub(r"([\\.*^$\[\]|])", r"\\\1", cut)
            command = f"sed {shlex.quote(f's|{pattern}||')} {shlex.quote(table.name)}"
            here = shlex.quote(f"here-{table.name}")
            yield rest, "", f"Remove the folder of the other machine: {command} > {here}"
    wanted = path.rpartition("/")[2].casefold()
    beside = root / os.path.dirname(path)  # noqa: PTH120
    if beside.is_dir():
        for name in sorted(os.listdir(beside)):  # noqa: PTH208 (names only)
            if name.casefold() == wanted:
                found = os.path.relpath(beside / name, root)
                yield found, ", upper and lower case differ", "Write paths as files are named."


def _folders_in(root: Path) -> list[str]:
    with os.scandir(root) as scan:
        names = sorted(entry.name for entry in scan if entry.is_dir())
    return [f"{name}/" for name in names[:_MAX_FOLDERS_TRIED]]


def _check_rows(file: CsvFile, *, path: Path) -> None:
    num_columns = len(file.header)
    wrong = [(number, len(cells)) for number, cells in file.body if len(cells) != num_columns]
    if wrong:
        rows = _name_rows([number for number, _ in wrong])
        what = "the header has" if file.header_line else "--columns names"
        raise DataError(
            f"wrong number of cells in {rows}: "
            f"{what} {num_columns}, row {wrong[0][0]} has {wrong[0][1]}",
            where=str(path),
            fix="Put quotes around cells that contain a comma.",
        )


def _check_filled(file: CsvFile, columns: list[int], *, path: Path) -> None:
    for column in columns:
        empty = [number for number, cells in file.body if _is_empty(cells[column])]
        if empty:
            raise DataError(
                f"column {file.header[column]!r} is empty in {_name_rows(empty)}",
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


class _Relative:
    """Makes paths relative to the CSV's folder: a store must not contain absolute paths."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: dict[str, str] = {}

    def __call__(self, cell: str) -> str:
        path = os.path.normpath(os.path.join(self._root, cell))  # noqa: PTH118 (twice as fast)
        folder, name = os.path.split(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.relpath(folder, self._root)
        return name if self._folders[folder] == "." else f"{self._folders[folder]}/{name}"

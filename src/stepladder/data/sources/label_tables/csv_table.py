"""List the pictures of a CSV; errors name the row, the column, and what to type."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.boxes import find_boxes
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.chooser import Chosen, TableChooser
from stepladder.data.sources.label_tables.csv_file import read_csv
from stepladder.data.sources.label_tables.json_file import is_json, read_json
from stepladder.data.sources.label_tables.label_cells import find_several, one_label
from stepladder.data.sources.label_tables.labels import classes_of, is_named_as_group
from stepladder.data.sources.label_tables.paths import are_file_names, parse_format
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading, is_empty
from stepladder.data.sources.label_tables.refusals import WANTED
from stepladder.data.sources.label_tables.row_problems import Conflict, row_problems
from stepladder.data.sources.listing import Listing, Picture, refuse_captions
from stepladder.data.sources.splits.split_names import split_of_cell
from stepladder.data.sources.walk import Skipped, printable
from stepladder.errors import DataError, UsageError

_MIN_GROUPS = 3  # different cells


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of one picture; split and group are None if the table has no such column."""

    number: int
    path: str
    label: str
    split: str | None
    group: str | None


def list_table(path: Path, config: PrepareConfig, *, folder: Path | None = None) -> Listing:
    """List the pictures of a CSV; relative paths are relative to its folder.

    Args:
        path: the table.
        config: the options of prepare.
        folder: the source, if it is the folder of the table or of one for each split.

    Raises:
        UsageError: if an option for it has a bad value.
        DataError: if the table is invalid, or none of its files exists; names the file, the rows
            and the column.
    """
    root = path.parent.resolve()
    file = _read_cells(path, config)
    shape = parse_format(config.path_format)
    reading = TableReading(file, path, config, root, shape, folder=folder)
    chooser = TableChooser(reading)
    chosen = chooser.choose()
    table = _read_table(chosen)
    to_path = chosen.to_path
    relative_to_root = _Relative(root)
    pictures: dict[str, Picture] = {}
    first_row: dict[str, int] = {}
    differing: dict[str, int] = {}
    num_repeated = 0
    for row in table.rows:
        where = f"{path}: {file.unit} {row.number}"
        split = None if row.split is None else split_of_cell(row.split, where)
        relative = relative_to_root(to_path(row.path))
        picture = Picture(relative, row.label, split, row.group)
        if relative not in pictures:
            pictures[relative] = picture
            first_row[relative] = row.number
        elif pictures[relative] == picture:
            num_repeated += 1
        else:
            differing.setdefault(relative, row.number)
    if table.empty or differing:
        rows: dict[str, list[_Row]] = {one: [] for one in differing}
        for row in table.rows if differing else []:
            rows.get(relative_to_root(to_path(row.path)), []).append(row)
        conflicts = [
            Conflict(some[0].path, [row.number for row in some], (first_row[one], differing[one]))
            for one, some in rows.items()
        ]
        raise row_problems(chooser.reading, table.empty, conflicts, chosen)
    warnings = [*file.notes, *chosen.notes, *(f"{path}: {note}" for note in to_path.notes())]
    warnings += _several_labels(chooser.reading, chosen, [row.label for row in table.rows])
    if all(picture.split is not Split.VAL for picture in pictures.values()):
        warnings += _ungrouped(chooser.reading, chosen)
    if num_repeated:
        warnings.append(f"{path}: skipped {num_repeated} repeated {file.unit}s")
        boxes = find_boxes(chooser.reading)
        if boxes is not None:
            said = f"{boxes.describe()}; the class of the boxes is that of the whole picture"
            warnings.append(f"{path}: {said}")
    has_group = chosen.group is not None
    listing = Listing(root, list(pictures.values()), Skipped(), tuple(warnings), has_group)
    return refuse_captions(listing, str(path))


@dataclass(frozen=True)
class _Table:
    """The rows whose cells are filled; the columns with empty cells, and the rows of these."""

    rows: list[_Row]
    empty: list[tuple[str, list[int]]]


def _read_table(chosen: Chosen) -> _Table:
    """Read the columns that prepare needs."""
    file, columns = chosen.file, chosen.columns
    split_at, group_at = chosen.split, chosen.group
    if split_at is not None and all(is_empty(cells[split_at]) for _, cells in file.body):
        split_at = None  # an empty column is ignored
    needed = [at for at in (chosen.path, *columns, split_at, group_at) if at is not None]
    empty = [
        (file.header[at], numbers)
        for at in dict.fromkeys(needed)
        if (numbers := [number for number, cells in file.body if is_empty(cells[at])])
    ]
    without = {number for _, some in empty for number in some}
    rows = [
        _Row(
            number,
            cells[chosen.path],
            cells[columns[0]].strip()
            if not chosen.is_one_hot
            else file.header[classes_of(cells, columns)[0]],
            None if split_at is None else cells[split_at].strip(),
            None if group_at is None else cells[group_at].strip(),
        )
        for number, cells in file.body
        if number not in without
    ]
    return _Table(rows, empty)


def _read_cells(path: Path, config: PrepareConfig) -> TableCells:
    names = _given_columns(config.columns)
    if not is_json(path):
        file = read_csv(path, wanted=(config.path_column, config.label_column), columns=names)
    elif names:
        raise UsageError(
            "the keys of a JSON file name its columns",
            where="prepare.columns",
            fix="Omit --columns. To choose keys: --path-column KEY --label-column KEY",
        )
    else:
        file = read_json(path)
    if not file.header:
        raise DataError("the table is empty", where=str(path), fix=WANTED)
    body = [row for row in file.body if [cell.strip() for cell in row[1]] != file.header]
    num_headers = len(file.body) - len(body)
    is_repeated = 0 < num_headers < len(file.body) and file.header_row > 0
    if not is_repeated or any(are_file_names([cell]) for cell in file.header):
        return file
    note = f"{path}: skipped {num_headers} repeated header(s)"
    return replace(file, body=body, notes=(*file.notes, note))


def _several_labels(reading: TableReading, chosen: Chosen, labels: Sequence[str]) -> list[str]:
    """Warn if the cells of a column seem to hold several labels."""
    at = None if chosen.is_one_hot else chosen.columns[0]
    several = find_several(labels, "" if at is None else chosen.file.header[at])
    if several is None:
        return []
    columns = TableColumns(chosen.path, at, chosen.split)
    options = f"{chosen.options} --overwrite".strip()  # a warning comes after the store is written
    fix = None if at is None else one_label(several, reading, columns, options)
    return [
        f"{reading.path}: {len(several.cells)} of {len(labels)} labels seem to be several in one "
        f"cell, such as {several.cells[0]!r}; each combination is a class of its own "
        f"({len(set(labels))} classes)" + (f". {fix}" if fix else "")
    ]


def _ungrouped(reading: TableReading, chosen: Chosen) -> list[str]:
    """Warn if a column names patients or the like with several pictures, and no option groups."""
    if reading.config.group_by is not None or reading.is_headerless:
        return []
    taken = {chosen.path, chosen.split, *chosen.columns}
    for at, name in enumerate(chosen.file.header):
        num = len(set(reading.cells(at))) if at not in taken and is_named_as_group(name) else 0
        num_rows = len(reading.file.body)
        if _MIN_GROUPS <= num < num_rows:
            return [
                f"{reading.path}: column {printable(name)!r} has {num} different cells in "
                f"{num_rows} {reading.file.unit}s, so pictures of one of them may be in train and "
                "in val, whose accuracy is then optimistic. To keep them in the same split, add "
                f"--group-by {shlex.quote(name)} --overwrite to the command"
            ]
    return []


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

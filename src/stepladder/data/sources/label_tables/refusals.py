"""What is wrong with the rows and columns of a table, and the command that reads it anyway."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.edits import removal_command, rows_command
from stepladder.data.sources.label_tables.label_cells import (
    refuse_captions,
    refuse_measured,
    refuse_several,
)
from stepladder.data.sources.label_tables.labels import (
    LABEL_NAMES,
    ONE_LABEL,
    classes_of,
    is_number,
    plain_name,
)
from stepladder.data.sources.label_tables.paths import (
    PATH_NAMES,
    SLOT,
    PathReader,
    are_file_names,
    flag_of,
)
from stepladder.data.sources.label_tables.pixel_cells import find_pixels
from stepladder.data.sources.label_tables.reading import (
    TableColumns,
    TableReading,
    given_options,
    prepare_command,
)
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.split_names import SPLIT_WORDS
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

WANTED: Final = "Write a header row such as path,label, then one row for each picture."
"""What a table must have."""
_MAX_ROWS_NAMED: Final = 5
_MAX_COLUMNS_NAMED: Final = 5
_MAX_LETTERS: Final = 30
_DIGIT: Final = re.compile("[1-9]")
_AFTER_COMMA: Final = re.compile(r"[0-9]+[eE]\+?[1-9][0-9]")
_A_MARK: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_ALSO_NAMED: Final = {"path": PATH_NAMES, "label": LABEL_NAMES}


class NoLabelsError(DataError):
    """A table has no column of labels, or several columns that may be it."""


def check_names(reading: TableReading) -> None:
    """Check that the columns of the options are unique.

    Raises:
        DataError: if two columns have the name of one of them.
    """
    header = reading.file.header
    for option in ("path_column", "label_column", "split_column", "group_by"):
        name = getattr(reading.config, option)
        if header.count(name) > 1:
            raise DataError(
                f"two columns are named {name!r}",
                where=reading.where,
                fix=f"Rename one of them, or choose another column: "
                f"--{option.replace('_', '-')} NAME",
            )


def check_rows(reading: TableReading) -> None:
    """Check that each row has as many cells as the header.

    Raises:
        DataError: if some have more or fewer; the fix joins surplus cells, or leaves the rows out.
    """
    file, num_columns = reading.file, len(reading.file.header)
    wrong = [(number, cells) for number, cells in file.body if len(cells) != num_columns]
    if not wrong:
        return
    _refuse_decimal_commas(reading, wrong)
    rows = name_rows([number for number, _ in wrong], file)
    what = "the header has" if file.header_row else "--columns names"
    what = "the first row has" if reading.is_headerless else what
    first = [printable(cells[0].strip())[:_MAX_LETTERS] for _, cells in wrong if cells]
    begin = f", which begin with {name_some([repr(one) for one in first[:_MAX_ROWS_NAMED]])}"
    begin = begin.replace("begin", "begins") if len(wrong) == 1 else begin
    raise DataError(
        f"wrong number of cells in {rows}{begin}: "
        f"{what} {num_columns}, row {wrong[0][0]} has {len(wrong[0][1])}",
        where=str(reading.path),
        fix=_of_equal_length(reading, wrong),
    )


def _refuse_decimal_commas(reading: TableReading, wrong: Sequence[tuple[int, list[str]]]) -> None:
    """Refuse rows with long numbers that a spreadsheet wrote with a decimal comma: 1,09013E+18.

    Raises:
        DataError: if there are such.
    """
    for number, cells in wrong:
        for before, after in itertools.pairwise(cells):
            if _DIGIT.fullmatch(before.strip()) and _AFTER_COMMA.fullmatch(after.strip()):
                raise DataError(
                    f"{before.strip()},{after.strip()} seems to be a number that a spreadsheet "
                    "rounded, with a decimal comma",
                    where=f"{reading.path}: {reading.file.unit} {number}",
                    why="The last digits are lost, so that it names no picture any more.",
                    fix="Export the ids again from their source, as text; in a spreadsheet, "
                    "import this column as text before you save the table.",
                )


def _of_equal_length(reading: TableReading, wrong: Sequence[tuple[int, list[str]]]) -> str:
    """Return how to make all rows as long as the header.

    Surplus cells are joined into the last column only if it has text: a comma in the text of
    another column would move the cells that follow it.
    """
    file, num_columns = reading.file, len(reading.file.header)
    lengths = [len(cells) for _, cells in wrong]
    usual = max(lengths, key=lengths.count)
    if (
        not file.header_row
        and len(wrong) == len(file.body)
        and 2 * lengths.count(usual) > len(wrong)
    ):
        rows = [cells for _, cells in wrong if len(cells) == usual]
        names = ",".join(_guess_names(rows))
        others = given_options(replace(reading.config, columns=None))
        typed = f"{prepare_command(reading.source)} --columns {shlex.quote(names)} {others}"
        return f"Name every column of the rows, such as: {typed.rstrip()}"
    fixes = [f"Put quotes around cells that contain {_A_MARK.get(file.delimiter, 'a space')}."]
    whole = [cells for _, cells in file.body if len(cells) == num_columns]
    options = reading.given_options()
    has_text = any(" " in cells[-1].strip() for cells in whole)
    mark = json.dumps(file.delimiter)
    is_moved = any(
        _is_moved([cells[at] for cells in whole], cells[at])
        for _, cells in file.body
        if len(cells) > num_columns
        for at in range(num_columns - 1)
    )
    if min(lengths) > num_columns and has_text and not is_moved:
        of_row = f"lambda r:[*r[:{num_columns - 1}],{mark}.join(r[{num_columns - 1}:])]"
        command = rows_command(reading, of_row, "joined", options)
        if command:
            fixes.append(f"To join the surplus cells into the last column: {command}")
    command = rows_command(
        reading, f"lambda r:r if len(r)=={num_columns} else None", "whole", options
    )
    if not command:
        numbers = {number for number, _ in wrong}
        command = removal_command(reading, numbers, "whole", options)
    if whole and command:
        fixes.append(f"To leave these rows out: {command}")
    return "\n".join(fixes)


def _is_moved(column: Sequence[str], cell: str) -> bool:
    """Return whether a cell is of another kind than all those of a column: text among numbers."""
    cells = [one.strip() for one in column if one.strip()]
    is_numeric = bool(cells) and all(map(is_number, cells))
    are_few = 2 * len(set(cells)) <= len(cells) and not is_numeric
    text = cell.strip()
    return bool(text) and ((is_numeric and not is_number(text)) or (are_few and text not in cells))


def check_one_hot(
    reading: TableReading, columns: list[int], path_at: int, readers: Sequence[PathReader]
) -> None:
    """Check that each row has one class.

    Args:
        reading: the table.
        columns: one for each class.
        path_at: the column of paths.
        readers: how its cells name files.

    Raises:
        DataError: if a row has several classes, or none.
    """
    file = reading.file
    counts = {number: len(classes_of(cells, columns)) for number, cells in file.body}
    for rows, what in (
        ([number for number, count in counts.items() if count > 1], "several classes"),
        ([number for number, count in counts.items() if count == 0], "no class"),
    ):
        if rows:
            reader = readers[0] if readers else PathReader()
            command = reading.command(TableColumns(path_at, columns[0]), reader)
            raise DataError(
                f"one column per class, and {what} in {name_rows(rows, file)}",
                where=str(reading.path),
                why=ONE_LABEL,
                fix=f"Leave one 1 in each {file.unit}, or learn one of the columns "
                f"{_name_columns([file.header[at] for at in columns])} alone, such as the first: "
                f"{command}",
            )


def refuse_nested(reading: TableReading, name: str) -> None:
    """Refuse a column of labels whose cells are lists or objects.

    Raises:
        DataError: if the column is such.
    """
    nested = reading.file.nested
    if name in nested:
        raise DataError(
            f"{name!r} holds lists or objects, such as several boxes or labels",
            where=f"{reading.path}: {reading.file.unit} {nested[name]}",
            why=ONE_LABEL,
            fix='Write the class of each picture as text or a number: "label": "cat"',
        )


def refuse_cells(
    reading: TableReading, columns: TableColumns, readers: Sequence[PathReader]
) -> None:
    """Refuse a column that may be the one of labels if its cells are not one class each.

    Raises:
        NoLabelsError: if they are numbers that look measured, captions, or several labels.
    """
    reader = readers[0] if readers else reading.shape
    try:
        refuse_measured(reading, columns, reader)
        refuse_captions(reading, columns, reader)
        refuse_several(reading, columns, reader)
    except DataError as error:
        raise NoLabelsError(error.what, where=error.where, why=error.why, fix=error.fix) from None


def refuse_pixels(reading: TableReading) -> None:
    """Refuse a table that holds the pictures themselves.

    Raises:
        DataError: if some of its columns are pixels or encoded pictures.
    """
    pixels = find_pixels(reading.file)
    if pixels is not None:
        raise DataError(
            pixels.describe(reading.file.header),
            where=str(reading.path),
            fix=pixels.conversion(reading.file, reading.path, is_headerless=reading.is_headerless),
        )


def several_splits(reading: TableReading, found: Sequence[int]) -> DataError:
    """Return an error for several columns that may be the one of splits."""
    names = [reading.file.header[at] for at in found]
    return DataError(
        f"several columns may be the one of splits: {_name_columns(names)}",
        where=reading.where,
        fix=f"Choose one: --split-column {shlex.quote(names[0])}",
    )


def no_column(
    reading: TableReading,
    option: str,
    path_at: int | None = None,
    readers: Sequence[PathReader] = (),
    able: Sequence[int] = (),
) -> DataError:
    """Return an error that suggests an unused column; it names the one found already, too.

    Args:
        reading: the table.
        option: path_column or label_column, which names no column.
        path_at: the column of paths, if it is found.
        readers: how its cells name files.
        able: columns that may be the missing one.

    Raises:
        NoLabelsError: if the cells of the column that it would suggest are no classes.
    """
    header, config = reading.file.header, reading.config
    name = str(getattr(config, option))
    kind = NoLabelsError if option == "label_column" else DataError
    if reading.is_headerless:
        columns = _guess_columns(reading.file.body[0][1], path_at)
        command = f"{prepare_command(reading.source)} --columns {shlex.quote(','.join(columns))}"
        if readers and readers[0].written != SLOT:
            command += "" if readers[0].others else f" {flag_of(readers[0])}"
        return kind(
            f"no column {name!r}: the first row describes a picture; there is no header",
            where=reading.where,
            fix=f"Name the columns: {command}",
        )
    near = _near_columns(reading, name, path_at, able)
    if near and path_at is not None:
        refuse_cells(reading, TableColumns(path_at, near[0]), readers)
    problem = f"no column {name!r} among {_name_columns(header)}"
    if len(able) > 1:
        some_able = _name_columns([header[at] for at in able])
        problem = f"no column {name!r}, and several may be it: {some_able}"
    flag = f"--{option.replace('_', '-')} {shlex.quote(header[near[0]]) if near else 'COLUMN'}"
    if path_at is not None:
        reader = readers[0] if readers else reading.shape
        flag = f"{reading.options(TableColumns(path_at), reader)} {flag}".strip()
    elif (label_at := reading.index(config.label_column)) is not None:
        flag += f" --label-column {shlex.quote(header[label_at])}"
        flag = flag.removesuffix(f" --label-column {PrepareConfig.label_column}")
    return kind(
        problem,
        where=reading.where,
        fix=f"Name the column: {prepare_command(reading.source)} {flag}",
    )


def _near_columns(
    reading: TableReading, name: str, path_at: int | None, able: Sequence[int]
) -> list[int]:
    """Return the unused columns that a name may mean, the likeliest first."""
    header, config = reading.file.header, reading.config
    named = {config.path_column, config.label_column, config.split_column, config.group_by}
    others = [
        at
        for at, column in enumerate(header)
        if column and column not in named and at != path_at and (not able or at in able)
    ]
    near = [at for usual in _ALSO_NAMED.get(name, ()) for at in others if _is(header[at], usual)]
    likely = difflib.get_close_matches(name, [header[at] for at in others], n=1, cutoff=0.6)
    near += [header.index(column) for column in likely]
    return [*able[:1], *near, *(others if len(others) == 1 else [])]


def _is(column: str, usual: str) -> bool:
    return usual in {column.lower(), plain_name(column)}


def _name_columns(names: Sequence[str]) -> str:
    """Name the first columns."""
    rest = len(names) - _MAX_COLUMNS_NAMED
    shown = ", ".join(repr(printable(name)[:40]) for name in names[:_MAX_COLUMNS_NAMED])
    return f"{shown} and {rest} more" if rest > 0 else shown


def _guess_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Guess names for the columns of rows of equal length; the label has the fewest values."""
    names = _guess_columns(rows[0], None)
    able = {
        at: num
        for at, name in enumerate(names)
        if name not in {"path", "split"} and (num := len({row[at].strip() for row in rows})) > 1
    }
    if able:
        names = [name if name != "label" else f"column{at + 1}" for at, name in enumerate(names)]
        names[min(able, key=able.__getitem__)] = "label"
    return names


def _guess_columns(cells: Sequence[str], path_at: int | None) -> list[str]:
    """Guess names for the columns of a table from its first row."""
    if path_at is None:
        path_at = next((at for at, cell in enumerate(cells) if are_file_names([cell])), 0)
    names = [f"column{at + 1}" for at in range(len(cells))]
    names[path_at] = "path"
    for at, cell in enumerate(cells):
        if at != path_at and cell.strip().lower() in SPLIT_WORDS:
            names[at] = "split"
    label_at = [at for at, name in enumerate(names) if name.startswith("column")]
    if label_at:
        names[label_at[0]] = "label"
    return names


def name_rows(numbers: Sequence[int], file: TableCells) -> str:
    """Name the first rows; and the lines of an editor, if rows have several lines."""
    some_rows = numbers[:_MAX_ROWS_NAMED]
    shown = ", ".join(str(number) for number in some_rows)
    shown += ", …" if len(numbers) > _MAX_ROWS_NAMED else ""
    lines = [file.lines_of(number)[0] for number in some_rows] if file.extra_lines else some_rows
    if list(lines) != list(some_rows):
        shown += f" (line {', '.join(map(str, lines))})"
    return f"{file.unit} {shown}" if len(numbers) == 1 else f"{len(numbers)} {file.unit}s: {shown}"

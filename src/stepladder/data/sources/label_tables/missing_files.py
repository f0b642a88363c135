"""Explain why the paths of a table name no file, and return the command that reads it anyway."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.edits import sed_command
from stepladder.data.sources.label_tables.paths import SLOT, PathReader, is_found, search
from stepladder.data.sources.label_tables.reading import (
    TableColumns,
    TableReading,
    is_empty,
)
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_MAX_SHOWN: Final = 2
_MAX_LETTERS: Final = 200  # of a path in a message


def no_file(
    reading: TableReading,
    columns: TableColumns,
    readers: Sequence[PathReader],
    *,
    is_one_hot: bool,
) -> DataError:
    """Return an error for paths that name no file, or names that are in several folders.

    Args:
        reading: the table.
        columns: those that are chosen.
        readers: the ways in which paths name files, if there are several or none is certain.
        is_one_hot: whether each class has its own column.
    """
    number, cell = _first_in_several(reading, columns.path, readers)
    where = f"{reading.path}: {reading.file.unit} {number}"
    reader = replace(reading.shape, is_stripped=cell != cell.strip(), has_backslashes="\\" in cell)
    wanted = reader(cell)
    if not readers and reading.config.path_format is not None:  # which does not help
        readers = search(reading.cells(columns.path), reading.root)
    is_address = _ADDRESS.match(wanted) is not None
    problem = (
        f"{printable(wanted)[:_MAX_LETTERS]!r} is an address, not a path"
        if is_address
        else f"no picture {printable(wanted)[:_MAX_LETTERS]!r} in {reading.root}"
    )
    if readers:
        what, fix = _found_elsewhere(reading, columns, readers, cell, is_address=is_address)
        return DataError(f"{problem}: {what}", where=where, fix=fix)
    other = _other_column(reading, columns, is_one_hot=is_one_hot)
    if other is not None:
        what, fix = other
        return DataError(f"{problem}: {what}", where=where, fix=fix)
    for exists in _in_another_case(reading.root, wanted):
        return DataError(
            f"{problem}: {printable(exists)} exists, upper and lower case differ",
            where=where,
            fix="Write paths as files are named.",
        )
    if is_address:
        fix = "Download the pictures, and write their paths into the table."
    else:
        fix = (
            "Paths are relative to the table's folder. If they lack a folder or an ending, add "
            "it: --path-format 'FOLDER/{}.jpg'"
        )
    return DataError(problem, where=where, fix=fix)


def what_lacks(reader: PathReader) -> str:
    """Return what the paths of a table lack, as a clause."""
    start, _, ending = reader.path_format.partition(SLOT)
    folder = start.rpartition("/")[1]
    both = [what for what, part in (("folder", folder), ("ending", ending)) if part]
    missing = f"the {' and the '.join(both)} {'are' if len(both) > 1 else 'is'} missing"
    if not reader.num_digits:
        return missing
    return f"{missing}, and so are zeros: names have {reader.num_digits} digits"


def _first_in_several(
    reading: TableReading, path_at: int, readers: Sequence[PathReader]
) -> tuple[int, str]:
    """Return the first row and cell; if readers differ, those that two of them find."""
    body = reading.file.body
    rows = [(number, cells[path_at]) for number, cells in body if not is_empty(cells[path_at])]
    if len(readers) > 1:
        for number, cell in rows:
            if sum(is_found(reading.root, one(cell)) for one in readers) > 1:
                return number, cell
    return rows[0]


def _found_elsewhere(
    reading: TableReading,
    columns: TableColumns,
    readers: Sequence[PathReader],
    cell: str,
    *,
    is_address: bool,
) -> tuple[str, str]:
    """Return what exists in place of the file of a cell, and the command that reads it."""
    found = readers[0]
    here = sorted(readers, key=lambda one: not is_found(reading.root, one(cell)))
    exist = " and ".join(printable(one(cell)) for one in here[:_MAX_SHOWN])
    if len(readers) > 1:
        command = reading.command(columns, found)
        return f"{exist} are both pictures", f"To read the first: {command}"
    if not found.cut:
        command = reading.command(columns, found)
        return f"{exist} exists, {what_lacks(found)}", f"Type: {command}"
    if found.cut == "/":
        folder = found.path_format.partition(SLOT)[0].rstrip("/") or "."
        ending = found.path_format.partition(SLOT)[2]
        found = replace(found, cut="", path_format=f"{folder}{SLOT}{ending}")
        command = reading.command(columns, found)
        return f"{exist} exists, the path begins with a slash", f"Type: {command}"
    what, fix = _other_start(reading, columns, found, exist)
    return f"{exist} exists" if is_address else what, fix


def _other_start(
    reading: TableReading, columns: TableColumns, reader: PathReader, exists: str
) -> tuple[str, str]:
    """Return what is wrong with paths whose start is not here, and the command against it."""
    file, cut = reading.file, reader.cut
    is_other = cut.startswith("/") or ":" in cut
    what = f"{cut!r} {'is a folder of another machine' if is_other else 'is no folder here'}"
    pattern = re.sub(r"([.*^$\[\]|])", r"\\\1", cut)
    if file.unit != "row":  # JSON may write \\ and \/
        pattern = pattern.replace("/", r"[\\/]\{1,2\}")
    elif reader.has_backslashes:
        pattern = pattern.replace("/", r"[\\/]")
    is_before = any(
        cut in cell.replace("\\", "/") for _, cells in file.body for cell in cells[: columns.path]
    )
    script = f"s|{pattern}||{'g' if is_before or file.unit == 'item' else ''}"
    options = reading.options(columns, replace(reader, cut=""))
    command = sed_command(reading, script, "here", options)
    return f"{exists} exists, {what}", f"Remove it: {command}"


def _other_column(
    reading: TableReading, columns: TableColumns, *, is_one_hot: bool
) -> tuple[str, str] | None:
    """Return which column names pictures instead, and the command that reads it."""
    for other in range(len(reading.file.header)):
        if (
            other not in {columns.path, columns.split}
            and reading.may_be_paths(other)
            and (better := reading.readers(other))
            and not better[0].cut
        ):
            is_taken = columns.label == other or (columns.label is None and not is_one_hot)
            label = columns.path if is_taken else columns.label
            command = reading.command(TableColumns(other, label, columns.split), better[0])
            exists = printable(better[0](reading.cells(other)[0]))
            return f"column {other + 1} names pictures, such as {exists}", f"Use it: {command}"
    return None


def _in_another_case(root: Path, path: str) -> Iterator[str]:
    wanted = path.rpartition("/")[2].casefold()
    beside = root / os.path.dirname(path)  # noqa: PTH120
    if os.path.isdir(beside):  # noqa: PTH112 (Path raises on a long name)
        for name in sorted(os.listdir(beside)):  # noqa: PTH208 (names only)
            if name.casefold() == wanted:
                yield os.path.relpath(beside / name, root)

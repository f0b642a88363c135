"""Commands that write an edited copy of a table, and read it."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path

from stepladder.data.sources.label_tables.reading import TableReading, prepare_command
from stepladder.data.sources.walk import printable

_NOT_OF_PYTHON = (" ", "\x1f")  # delimiters of lines that the csv module does not split alike


def sed_command(reading: TableReading, script: str, prefix: str, options: str) -> str:
    """Return the shell command that edits a table with sed, and reads the result.

    Args:
        reading: the table.
        script: of sed.
        prefix: in front of the name of the copy.
        options: with which the copy is read.
    """
    before, source, copy, then = _places(reading, prefix)
    encoding = reading.file.encoding
    edit = f"sed {shlex.quote(script)} {source} > {copy}"
    if not encoding.startswith("utf-8"):
        name = "WINDOWS-1252" if encoding == "cp1252" else encoding.upper()
        edit = f"iconv -f {name} -t UTF-8 {source} | sed {shlex.quote(script)} > {copy}"
    return f"{before}{edit} && {f'{then} {options}'.rstrip()}"


def cells_command(
    reading: TableReading, at: int, function: str, prefix: str, options: str
) -> str | None:
    """Return the shell command that writes other cells into a column, and reads the result.

    Args:
        reading: the table.
        at: index of the column.
        function: of a cell, in Python, as in rows_command.
        prefix: in front of the name of the copy.
        options: with which the copy is read.

    Returns:
        As rows_command.
    """
    of_row = (
        f"(lambda g:lambda r:[*r[:{at}],g(r[{at}].strip()),*r[{at + 1}:]] if len(r)>{at} else r)"
        f"({function})"
    )
    return rows_command(reading, of_row, prefix, options)


def rows_command(reading: TableReading, function: str, prefix: str, options: str) -> str | None:
    """Return the shell command that writes other rows of a table, and reads the result.

    Args:
        reading: the table.
        function: of a row, in Python, with the modules bisect, csv, os, re and sys: the list of
            its cells, or None if it is left out. The header is not given to it.
        prefix: in front of the name of the copy.
        options: with which the copy is read.

    Returns:
        None if the table is not one whose cells the csv module finds, or one of several tables,
        whose rows must be edited alike.
    """
    file = reading.file
    if reading.folder is not None and reading.folder.resolve() != reading.root:
        return None
    if file.unit != "row" or file.delimiter in _NOT_OF_PYTHON:
        return None
    are_skipped = not any(cell.startswith(" ") for _, cells in file.body for cell in cells)
    first = max(file.header_row - 1, 0)
    num_before = max(file.header_row - reading.is_headerless, 0)
    script = (
        f"import bisect,csv,os,re,sys;csv.field_size_limit(2**30);f={function};"
        f't=csv.reader(open(sys.argv[1],encoding="{file.encoding}",newline=""),'
        f"delimiter={json.dumps(file.delimiter)},skipinitialspace={are_skipped});"
        'w=csv.writer(open(sys.argv[2],"w",encoding="utf-8",newline=""));'
        f'w.writerows(filter(None,(f(r) if i>={num_before} and r and (r[0][:1]!="#" or '
        f"len(r)=={len(file.header)}) else r "
        f"for i,r in enumerate(t) if i>={first})))"
    )
    before, source, copy, then = _places(reading, prefix)
    edit = f"python -c {shlex.quote(script)} {source} {copy}"
    return f"{before}{edit} && {f'{then} {options}'.rstrip()}"


def _places(reading: TableReading, prefix: str) -> tuple[str, str, str, str]:
    """Return a command to run before, the file to edit, the result, and the command that reads it.

    One of several tables of a folder is replaced, so that the others are still read with it.
    """
    path = reading.path
    if reading.folder is None:
        copy = path.with_name(f"{prefix}-{path.name}")
        return "", _quoted(path), _quoted(copy), prepare_command(copy)
    backup = next(
        one
        for at in itertools.count(1)
        if not (one := path.with_name(f"{path.name}.bak{at}")).exists()
    )
    before = f"cp {_quoted(path)} {_quoted(backup)} && "
    return before, _quoted(backup), _quoted(path), prepare_command(reading.folder)


def _quoted(path: Path) -> str:
    return shlex.quote(printable(str(path)))

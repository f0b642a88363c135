"""Commands that write an edited copy of a table, and read it."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Set
from pathlib import Path

from stepladder.data.sources.label_tables.json_file import is_json, read_json
from stepladder.data.sources.label_tables.reading import TableReading, prepare_command
from stepladder.data.sources.walk import printable
from stepladder.errors import StepladderError

_MAX_ROWS_REMOVED = 20  # by their numbers in a command
_NOT_OF_PYTHON = (" ", "\x1f")  # delimiters of lines that the csv module does not split alike

_EDIT_JSON = (
    "W=lambda a,b:(lambda t:pathlib.Path(b).write_text("
    '"".join(json.dumps(dict(zip(t.header,f(r))))+"\\n" for _,r in t.body if f(r)),'
    'encoding="utf-8"))(read_json(pathlib.Path(a)))'
)
"""Python code of a function that writes the rows `f(row)` of a JSON file as JSON lines."""


def sed_command(reading: TableReading, script: str, prefix: str, options: str) -> str:
    """Return the shell command that edits a table with sed, and reads the result.

    Args:
        reading: the table.
        script: of sed.
        prefix: in front of the name of the copy.
        options: with which the copy is read.
    """
    before, source, copy, then = _places(reading, reading.path, prefix)
    encoding = reading.file.encoding
    edit = f"sed {shlex.quote(script)} {source} > {copy}"
    if not encoding.startswith("utf-8"):
        name = "WINDOWS-1252" if encoding == "cp1252" else encoding.upper()
        edit = f"iconv -f {name} -t UTF-8 {source} | sed {shlex.quote(script)} > {copy}"
    return f"{before}{edit} && {f'{then} {options}'.rstrip()}"


def removal_command(reading: TableReading, rows: Set[int], prefix: str, options: str) -> str:
    """Return the shell command that reads a table without some of its rows.

    Args:
        reading: the table.
        rows: their numbers.
        prefix: in front of the name of the copy.
        options: with which the copy is read.

    Returns:
        An empty string if they are many, or all, or the table is not a CSV.
    """
    file = reading.file
    if len(rows) > _MAX_ROWS_REMOVED or len(rows) == len(file.body) or file.unit == "item":
        return ""
    lines = [file.lines_of(number) for number in sorted(rows)]
    script = ";".join(f"{first}d" if first == last else f"{first},{last}d" for first, last in lines)
    return sed_command(reading, script, prefix, options)


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
        function: of a row, in Python, with the modules bisect, csv, json, os, re and sys: the list
            of its cells, or None if it is left out. The header is not given to it.
        prefix: in front of the name of the copy.
        options: with which the copy is read.

    Returns:
        None if the table is not JSON or a CSV whose cells the csv module finds, or is one of
        several tables, which cannot be edited alike. Other columns of JSON become text.
    """
    file = reading.file
    tables = _tables(reading)
    if file.delimiter in _NOT_OF_PYTHON or not tables or (tables[1:] and "sys." in function):
        return None
    imports = "import bisect,csv,json,os,re,sys"
    edit = _edit_csv(reading)
    if file.unit != "row":
        imports = "import bisect,csv,json,os,pathlib,re,sys;from "
        imports += f"{read_json.__module__} import read_json"
        edit = _EDIT_JSON
    script = (
        f"{imports};csv.field_size_limit(2**30);f={function};{edit};"
        "[W(a,b) for a,b in zip(sys.argv[1::2],sys.argv[2::2])]"
    )
    places = [_places(reading, table, prefix) for table in tables]
    before = "".join(place[0] for place in places)
    files = " ".join(f"{source} {copy}" for _, source, copy, _ in places)
    return (
        f"{before}python -c {shlex.quote(script)} {files} && {f'{places[0][3]} {options}'.rstrip()}"
    )


def copy_command(reading: TableReading, command: str, prefix: str) -> str:
    """Return the shell command that runs another with the table and a copy to write, and reads it.

    Args:
        reading: the table.
        command: writes the copy.
        prefix: in front of the name of the copy.
    """
    before, source, copy, then = _places(reading, reading.path, prefix)
    return f"{before}{command} {source} {copy} && {then}"


def _edit_csv(reading: TableReading) -> str:
    """Return Python code: a function that writes the rows `f(row)` of one CSV into another."""
    file = reading.file
    are_skipped = not any(cell.startswith(" ") for _, cells in file.body for cell in cells)
    first = max(file.header_row - 1, 0)
    num_before = max(file.header_row - reading.is_headerless, 0)
    return (
        'W=lambda a,b:csv.writer(open(b,"w",encoding="utf-8",newline="")).writerows(filter(None,('
        f'f(r) if i>={num_before} and r and (r[0][:1]!="#" or len(r)=={len(file.header)}) else r '
        f'for i,r in enumerate(csv.reader(open(a,encoding="{file.encoding}",newline=""),'
        f"delimiter={json.dumps(file.delimiter)},skipinitialspace={are_skipped})) if i>={first})))"
    )


def _tables(reading: TableReading) -> list[Path]:
    """Return the table, or those of all splits; an empty list if their columns differ."""
    path, folder = reading.path, reading.folder
    if folder is None or folder.resolve() == reading.root:
        return [path]
    tables = sorted(folder.glob(f"*/{path.name}"))
    try:
        headers = {_header(table, reading.file.header_row) for table in tables}
    except (StepladderError, OSError):
        return []
    return tables if len(headers) == 1 else []


def _header(table: Path, num_lines: int) -> str:
    """Return the first lines of a CSV, or the keys of JSON."""
    if is_json(table):
        return json.dumps(read_json(table).header)
    with table.open("rb") as file:
        return repr([next(file, b"").strip() for _ in range(num_lines)])


def _places(reading: TableReading, path: Path, prefix: str) -> tuple[str, str, str, str]:
    """Return a command to run before, the file to edit, the result, and the command that reads it.

    One of several tables of a folder is replaced, so that the others are still read with it.
    """
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

"""Read the cells of a CSV file as spreadsheets and other tools write it."""

from __future__ import annotations

import contextlib
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.encodings import (
    WINDOWS,
    encoding_of,
    not_unicode,
    windows_text,
)
from stepladder.data.sources.label_tables.paths import (
    PICTURE_ENDS,
    PathReader,
    are_file_names,
    read_plainly,
    search,
)
from stepladder.errors import DataError

_DELIMITERS: Final = ",;\t|"
_NUM_SAMPLE_LINES: Final = 50
MAX_CELL: Final = 1 << 27
"""Letters of a cell, which may hold a whole picture."""
_SEPARATOR: Final = "\x1f"  # in place of the blanks after the name of a picture
_NAMED: Final = re.compile(
    rf"(\S.*(?:{'|'.join(map(re.escape, PICTURE_ENDS))})) +(\S.*)", re.IGNORECASE
)
_NAMES: Final = {
    **{";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"},
    _SEPARATOR: "the spaces after the names of pictures, which contain spaces, too",
}
_SAVE_AGAIN: Final = (
    "Save it as a comma-separated file; put cells with commas or quotes in double quotes."
)


def read_csv(path: Path, *, wanted: Sequence[str], columns: Sequence[str] | None) -> TableCells:
    """Read a CSV of UTF-8, UTF-16 or Windows-1252, separated by `,`, `;`, tabs, `|` or blanks.

    Args:
        path: the file.
        wanted: columns that decide between two possible delimiters.
        columns: names of the columns of a file without a header; None: its first row has them.

    Raises:
        DataError: if the text cannot be decoded, or quotes are not closed; names the line.
    """
    csv.field_size_limit(MAX_CELL)
    encoding = encoding_of(path)
    notes: tuple[str, ...] = ()
    try:
        if encoding == "utf-8-sig":
            example = windows_text(path)
            if example is not None:
                encoding = WINDOWS
                notes = (f"{path}: not UTF-8, read as Windows-1252, such as {example!r}",)
        with path.open(encoding=encoding, newline="") as file:
            table = _read(iter(file), path, wanted, columns, encoding)
            return replace(table, notes=(*notes, *table.notes))
    except UnicodeError:
        raise not_unicode(path, encoding) from None


def read_start(config: PrepareConfig, columns: Sequence[str] | None) -> TableCells | None:
    """Read the first rows of a CSV in UTF-8 or UTF-16; None if they cannot be read.

    Args:
        config: has the file, and the columns that decide between two possible delimiters.
        columns: as in read_csv.
    """
    csv.field_size_limit(MAX_CELL)
    path, wanted = config.source.expanduser(), (config.path_column, config.label_column)
    encoding = encoding_of(path)
    with contextlib.suppress(UnicodeError, DataError), path.open(encoding=encoding) as file:
        lines = itertools.islice(file, _NUM_SAMPLE_LINES)
        return _read(lines, path, wanted, columns, encoding)
    return None


def _read(
    lines: Iterator[str],
    path: Path,
    wanted: Sequence[str],
    columns: Sequence[str] | None,
    encoding: str,
) -> TableCells:
    num_before, delimiter, first = _skip_preamble(lines, wanted)
    if first is None:
        return TableCells([], [], 0)
    sample = [first, *itertools.islice(lines, _NUM_SAMPLE_LINES)]
    count = _pop_count(sample)
    num_before += len(count)
    if delimiter is None:
        delimiter = _delimiter(sample, wanted, columns)
    rows = _lines_for(itertools.chain(sample, lines), delimiter)
    num_after = _num_after_names(sample, path.parent, columns)
    if num_after:
        rows = (_cut_after_name(line, num_after) for line in itertools.chain(sample, lines))
        delimiter = _SEPARATOR
    reader = csv.reader(
        rows,
        delimiter=delimiter,
        skipinitialspace=delimiter == " " or any(f'{delimiter} "' in line for line in sample),
        strict=True,
    )
    header = list(columns or ())
    body: list[tuple[int, list[str]]] = []
    extra_lines: list[tuple[int, int]] = []
    num_comments = num_before - len(count)
    line = num_before
    try:
        for row, cells in enumerate(reader, start=num_before + 1):
            extra = num_before + reader.line_num - line - 1
            line = num_before + reader.line_num
            if extra:
                extra_lines.append((row, extra))
            if not header:
                header = [name.strip() for name in cells]
                header[0] = header[0].removeprefix("#").strip()
            elif cells and cells[0].startswith("#") and len(cells) != len(header):
                num_comments += 1
            elif any(cell.strip() for cell in cells):
                body.append((row, cells))
    except csv.Error as error:
        raise DataError(
            f"not a CSV ({error})", where=f"{path}: line {line + 1}", fix=_SAVE_AGAIN
        ) from None
    header = list(columns or _with_paths(header, body))
    notes = tuple(_notes(path, delimiter, encoding, num_comments, count))
    return TableCells(
        header,
        body,
        0 if columns else num_before + 1,
        notes,
        encoding=encoding,
        delimiter=delimiter,
        extra_lines=tuple(extra_lines),
    )


def _pop_count(sample: list[str]) -> list[str]:
    """Remove the first line if it is a number, and all others have several cells; return it."""
    others = [line.strip() for line in sample[1:] if line.strip()]
    is_wide = bool(others) and all(re.search(r"[,;\t| ]", line) for line in others)
    return [sample.pop(0)] if is_wide and sample[0].strip().isdecimal() else []


def _with_paths(header: list[str], body: Sequence[tuple[int, list[str]]]) -> list[str]:
    """Return the header with a name for the pictures, if it has none: `Male Young`."""
    is_short = {len(cells) for _, cells in body} == {len(header) + 1} and "path" not in header
    return (
        ["path", *header]
        if is_short and are_file_names([cells[0] for _, cells in body])
        else header
    )


def _notes(
    path: Path, delimiter: str, encoding: str, num_comments: int, count: Sequence[str]
) -> Iterator[str]:
    for line in count:
        yield f"{path}: skipped the first line, {line.strip()}, which is a number of rows"
    if delimiter in _NAMES:
        yield f"{path}: read as separated by {_NAMES[delimiter]}"
    if encoding.startswith(("utf-16", "utf-32")):
        yield f"{path}: read as {encoding.upper()}"
    if num_comments:
        yield f"{path}: skipped {num_comments} comment line(s)"


def _skip_preamble(
    lines: Iterator[str], wanted: Sequence[str]
) -> tuple[int, str | None, str | None]:
    """Skip comments, blank lines and Excel's `sep=;` before the header.

    Returns:
        The number of skipped lines, the delimiter that they name, and the first line after them.
    """
    delimiter = None
    for number, line in enumerate(lines):
        text = line.strip()
        if text.lower().startswith("sep=") and len(text) == len("sep=;"):
            delimiter = text[-1]
        elif text and not (text.startswith("#") and not _has_all(text, wanted)):
            return number, delimiter, line
    return 0, None, None


def _has_all(header: str, wanted: Sequence[str]) -> bool:
    """Return whether a commented line is a header, as NumPy writes it."""
    return any(
        set(wanted) <= {cell.strip() for cell in header.lstrip("# ").split(delimiter)}
        for delimiter in _DELIMITERS
    )


def _delimiter(sample: list[str], wanted: Sequence[str], columns: Sequence[str] | None) -> str:
    """Return the delimiter: the one that gives the wanted columns, else equally long rows.

    A few rows may have more or fewer cells, which are reported later.
    """
    rows: dict[str, list[list[str]]] = {
        delimiter: [cells for cells in _parse(sample, delimiter) if cells]
        for delimiter in (*_DELIMITERS, " ")
    }
    widths = {one: {len(cells) for cells in _below(parsed)} for one, parsed in rows.items()}
    usual = {one: _usual_width(parsed) for one, parsed in rows.items()}
    if columns is not None:
        fitting = [one for one in rows if widths[one] == {len(columns)}]
        fitting += [one for one in rows if usual[one] == len(columns)]
        if fitting:
            return fitting[0]
    for one, parsed in rows.items() if columns is None else ():
        if parsed and set(wanted) <= {cell.strip(" #") for cell in parsed[0]}:
            return one
    even = [one for one in _DELIMITERS if len(widths[one]) == 1 and widths[one] != {1}]
    if len(even) == 1:
        return even[0]
    if all(widths[one] <= {1} or usual[one] == 1 for one in _DELIMITERS):
        if usual[" "] > 1:  # `cat/1.jpg 0`
            return " "
        if all(widths[one] <= {1} for one in _DELIMITERS):
            return ","
    return _sniff(sample, even or [one for one in _DELIMITERS if widths[one] - {1}])


def _usual_width(rows: list[list[str]]) -> int:
    """Return the number of cells that more than half of the rows have; 0 without one."""
    counts = Counter(len(cells) for cells in _below(rows))
    width, num = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    return width if 2 * num > counts.total() else 0


def _below(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows without a header that has no name for the pictures: `Male Young`."""
    others = rows[1:]
    is_short = bool(others) and all(len(cells) == len(rows[0]) + 1 for cells in others)
    return others if is_short and are_file_names([cells[0] for cells in others]) else rows


def _sniff(sample: list[str], able: list[str]) -> str:
    """Return the delimiter that the csv module finds among some; else the first one."""
    with contextlib.suppress(csv.Error):
        found: str = csv.Sniffer().sniff("".join(sample), delimiters="".join(able)).delimiter
        if found in able:
            return found
    return able[0]


def _lines_for(lines: Iterable[str], delimiter: str) -> Iterator[str]:
    """Return the lines; blanks at their ends separate nothing."""
    return (f"{line.rstrip()}\n" for line in lines) if delimiter == " " else iter(lines)


def _num_after_names(sample: list[str], folder: Path, columns: Sequence[str] | None) -> int:
    """Return the number of columns after names of pictures with blanks: `my cat.jpg 0`.

    Returns:
        0 if the cells are separated otherwise, or no such picture exists.
    """
    lines = [line.strip() for line in sample if line.strip()]
    if any(delimiter in line for line in lines for delimiter in _DELIMITERS):
        return 0
    is_even = len({len(line.split()) for line in lines}) == 1
    for rows in (lines, lines[1:]):  # with a header
        pairs = [_NAMED.fullmatch(line) for line in rows]
        parts = [(match[1].rstrip(), match[2]) for match in pairs if match]
        if len(parts) < len(rows):
            parts = [(one[0], one[1]) for one in (line.rsplit(None, 1) for line in rows) if one[1:]]
        paths = [path for path, _ in parts if " " in path or not is_even]
        if not paths or len(parts) < len(rows):
            continue
        widths = {len(after.split()) for _, after in parts}
        num_after = widths.pop() if len(widths) == 1 else 1
        num_columns = len(columns) if columns is not None else num_after + 1
        has_header = rows is not lines
        is_wide = num_columns == num_after + 1 and (
            not has_header or len(lines[0].split()) == num_columns
        )
        if is_wide and (
            read_plainly(paths, folder, PathReader()) or search(paths, folder.resolve())
        ):
            return num_after
    return 0


def _cut_after_name(line: str, num_after: int) -> str:
    """Return a line whose cells are separated by something else than blanks."""
    match = _NAMED.fullmatch(line.strip())
    cells = line.rsplit(None, num_after)
    if match is not None:
        cells = [match[1].rstrip(), *match[2].split(None, num_after - 1)]
    return f"{_SEPARATOR.join(cells)}\n"


def _parse(sample: list[str], delimiter: str) -> list[list[str]]:
    """Parse as many of the lines as possible; the last one may end within quotes."""
    found: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        found.extend(
            csv.reader(
                _lines_for(sample, delimiter),
                delimiter=delimiter,
                skipinitialspace=delimiter == " ",
            )
        )
    return found

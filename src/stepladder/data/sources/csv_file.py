"""Read the cells of a CSV file as spreadsheets and other tools write it."""

from __future__ import annotations

import codecs
import contextlib
import csv
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.errors import DataError

_DELIMITERS: Final = ",;\t|"
_NAMES: Final = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_MARKS: Final = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NUM_SAMPLE_LINES: Final = 50
_NUM_PROBE_BYTES: Final = 4096
_SAVE_AGAIN: Final = (
    "Save it as a comma-separated file; put cells with commas or quotes in double quotes."
)


@dataclass(frozen=True)
class CsvFile:
    """The cells of a file.

    Attributes:
        header: column names, stripped.
        body: line number and cells of each row; the first line of the file is 1.
        header_line: line of the header; 0 if the names were given.
        notes: what was read in another way than a comma-separated UTF-8 file.
    """

    header: list[str]
    body: list[tuple[int, list[str]]]
    header_line: int
    notes: tuple[str, ...] = ()


def read_csv(path: Path, *, wanted: Sequence[str], columns: Sequence[str] | None) -> CsvFile:
    """Read a CSV: UTF-8, or UTF-16 with a mark; separated by commas, semicolons, tabs or bars.

    Args:
        path: the file.
        wanted: columns that decide between two possible delimiters.
        columns: names of the columns of a file without a header; None: its first row has them.

    Raises:
        DataError: if the text cannot be decoded, or quotes are not closed; names the row.
    """
    encoding = _encoding(path)
    try:
        with path.open(encoding=encoding, newline="") as file:
            return _read(iter(file), path, wanted, columns, encoding)
    except UnicodeError:
        row = _first_bad_row(path.read_bytes(), encoding)
        raise DataError(
            f"not {encoding.removesuffix('-sig').upper()} text",
            where=f"{path}: row {row}",
            fix=f"Save it as UTF-8. A file of Windows is converted by: iconv -f WINDOWS-1252 -t "
            f"UTF-8 {path.name} > utf8-{path.name}",
        ) from None


def _read(
    lines: Iterator[str],
    path: Path,
    wanted: Sequence[str],
    columns: Sequence[str] | None,
    encoding: str,
) -> CsvFile:
    num_before, delimiter, first = _skip_preamble(lines, wanted)
    if first is None:
        return CsvFile([], [], 0)
    sample = [first, *itertools.islice(lines, _NUM_SAMPLE_LINES)]
    if delimiter is None:
        delimiter = _delimiter(sample, wanted, columns)
    reader = csv.reader(
        itertools.chain(sample, lines),
        delimiter=delimiter,
        skipinitialspace=delimiter == " ",
        strict=True,
    )
    header = list(columns or ())
    body: list[tuple[int, list[str]]] = []
    num_comments = num_before
    line = num_before
    try:
        for cells in reader:
            line = num_before + reader.line_num
            if not header:
                header = [name.strip() for name in cells]
                header[0] = header[0].removeprefix("#").strip()
            elif cells and cells[0].startswith("#") and len(cells) != len(header):
                num_comments += 1
            elif cells:
                body.append((line, cells))
    except csv.Error as error:
        raise DataError(
            f"not a CSV ({error})", where=f"{path}: row {line + 1}", fix=_SAVE_AGAIN
        ) from None
    notes = tuple(_notes(path, delimiter, encoding, num_comments))
    return CsvFile(header, body, 0 if columns else num_before + 1, notes)


def _notes(path: Path, delimiter: str, encoding: str, num_comments: int) -> Iterator[str]:
    if delimiter in _NAMES:
        yield f"{path}: read as separated by {_NAMES[delimiter]}"
    if not encoding.startswith("utf-8"):
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
    """Return the delimiter: the one that gives the columns, else a comma, else what is usual."""
    rows: dict[str, list[list[str]]] = {
        delimiter: [cells for cells in _parse(sample, delimiter) if cells]
        for delimiter in (*_DELIMITERS, " ")
    }
    if columns is not None:
        for delimiter, parsed in rows.items():
            if parsed and all(len(cells) == len(columns) for cells in parsed):
                return delimiter
        return ","
    for delimiter in _DELIMITERS:
        if rows[delimiter] and set(wanted) <= {cell.strip(" #") for cell in rows[delimiter][0]}:
            return delimiter
    if rows[","] and len(rows[","][0]) > 1:
        return ","
    try:
        found: str = csv.Sniffer().sniff("".join(sample), delimiters=_DELIMITERS).delimiter
        return found
    except csv.Error:
        return ","


def _parse(sample: list[str], delimiter: str) -> list[list[str]]:
    """Parse as many of the lines as possible; the last one may end within quotes."""
    found: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        found.extend(csv.reader(sample, delimiter=delimiter, skipinitialspace=delimiter == " "))
    return found


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(_NUM_PROBE_BYTES)
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    even, odd = head[0:-1:2], head[1::2]
    if even and odd.count(0) == len(odd):
        return "utf-16-le"
    if even and even.count(0) == len(even):
        return "utf-16-be"
    return "utf-8-sig"


def _first_bad_row(data: bytes, encoding: str) -> int:
    try:
        data.decode(encoding)
    except UnicodeDecodeError as error:
        return data[: error.start].decode(encoding, "replace").count("\n") + 1
    return 1

"""Read the first sheet of an Excel workbook (.xlsx), to find labels in it and to write it as CSV.

The source: ECMA-376, part 1, SpreadsheetML: `xl/worksheets` has the cells of each sheet, with texts
in place, or as numbers of those in `xl/sharedStrings.xml`.
"""

from __future__ import annotations

import csv
import posixpath
import re
import zipfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.errors import DataError

SPREADSHEETS: Final = (".xlsx", ".xlsm")
_MAX_BYTES: Final = 1 << 28  # of a file in the workbook, unpacked
_MAX_COLUMNS: Final = 16384
_PLACE: Final = re.compile(r"([A-Z]{1,3})[0-9]+")
_STRINGS: Final = "xl/sharedStrings.xml"
_WORKBOOK: Final = "xl/workbook.xml"
_RELATIONS: Final = "xl/_rels/workbook.xml.rels"


def read_sheet(path: Path) -> TableCells:
    """Return the cells of the first sheet; numbers and dates are as stored.

    Raises:
        DataError: if the file cannot be read, or its first sheet is empty.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            strings = []
            if _STRINGS in names:
                strings = [_text(one) for one in _parsed(archive, _STRINGS) if _is(one, "si")]
            rows = [
                _cells(row, strings)
                for row in _parsed(archive, _first_sheet(archive)).iter()
                if _is(row, "row")
            ]
    except (OSError, ValueError, LookupError, zipfile.BadZipFile, ElementTree.ParseError) as error:
        raise _unreadable(path, f"cannot be read ({error})") from None
    rows = [row for row in rows if any(row)]
    if not rows:
        raise _unreadable(path, "has an empty first sheet")
    width = max(map(len, rows))
    header, *body = ([*row, *[""] * (width - len(row))] for row in rows)
    numbered = list(enumerate(body, start=2))
    return TableCells(header, numbered, header_row=1, unit="row of the sheet")


def write_csv(source: str, table: str) -> None:
    """Write the first sheet of a workbook as CSV.

    Args:
        source: the workbook.
        table: the CSV.
    """
    cells = read_sheet(Path(source))
    with Path(table).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([cells.header, *(row for _, row in cells.body)])


def _unreadable(path: Path, what: str) -> DataError:
    return DataError(
        f"this Excel workbook {what}",
        where=str(path),
        fix="Open it in Excel or LibreOffice, and save its sheet of labels as CSV UTF-8.",
    )


def _first_sheet(archive: zipfile.ZipFile) -> str:
    """Return the file of the first sheet, in the order of the tabs."""
    sheet = next(one for one in _parsed(archive, _WORKBOOK).iter() if _is(one, "sheet"))
    idx = next(value for name, value in sheet.items() if name.endswith("}id"))
    target = next(
        one.get("Target", "") for one in _parsed(archive, _RELATIONS) if one.get("Id") == idx
    )
    return posixpath.normpath(posixpath.join("xl", target)).lstrip("/")


def _parsed(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if archive.getinfo(name).file_size > _MAX_BYTES:
        raise ValueError(f"{name} is larger than {_MAX_BYTES} bytes")
    with archive.open(name) as file:
        return ElementTree.fromstring(file.read(_MAX_BYTES))


def _cells(row: ElementTree.Element, strings: list[str]) -> list[str]:
    found: dict[int, str] = {}
    for cell in row:
        match = _PLACE.fullmatch(cell.get("r", ""))
        at = max(found, default=-1) + 1 if match is None else _column(match[1])
        if at < _MAX_COLUMNS:
            found[at] = _value(cell, strings).strip()
    return [found.get(at, "") for at in range(max(found, default=-1) + 1)]


def _column(letters: str) -> int:
    at = 0
    for letter in letters:
        at = 26 * at + ord(letter) - ord("A") + 1
    return at - 1


def _value(cell: ElementTree.Element, strings: list[str]) -> str:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return _text(cell)
    text = next((one.text or "" for one in cell if _is(one, "v")), "")
    if kind == "s" and text:
        return strings[int(text)]
    if kind == "b":
        return "TRUE" if text == "1" else "FALSE"
    return text.removesuffix(".0") if kind == "n" else text


def _text(element: ElementTree.Element) -> str:
    """Return the text of an element, without the pronunciation of it."""
    if _is(element, "t"):
        return element.text or ""
    return "".join(_text(one) for one in element if not _is(one, "rPh"))


def _is(element: ElementTree.Element, name: str) -> bool:
    return element.tag.rpartition("}")[2] == name

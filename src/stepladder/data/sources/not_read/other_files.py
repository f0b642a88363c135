"""Recognise files that are neither a table nor pictures, and report how to convert them."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.encodings import encoding_of
from stepladder.data.sources.not_read.arrays import arrays_refused
from stepladder.data.sources.not_read.binary_tables import refuse_binary_table, spreadsheet_refused
from stepladder.data.sources.not_read.data_files import known_set_refused
from stepladder.data.sources.not_read.not_here import pull_lfs
from stepladder.data.sources.not_read.unread_formats import is_idx
from stepladder.data.sources.walk import quoted
from stepladder.errors import DataError, StepladderError, UsageError

_NUM_HEAD_BYTES: Final = 256
_TEXT: Final = "utf-8-sig"  # unless its first bytes show UTF-16
_SPREADSHEETS: Final = (".xlsx", ".xlsm", ".xls", ".xlsb", ".ods", ".numbers")
_LFS: Final = "a placeholder of Git LFS"
_NPY: Final = b"\x93NUMPY"
_STARTS: Final = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"%PDF", "a PDF"),
    (b"SQLite format 3", "an SQLite database"),
    (b"Rar!", "a RAR archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"version https://git-lfs", _LFS),
)
_UNPACKERS: Final = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))
_FIXES: Final = {
    "a picture": "Name the folder that contains it: stepladder prepare {folder}",
    "a RAR archive": "Unpack it, and prepare the folder with its contents: unrar x {file}",
    "a 7z archive": "Unpack it, and prepare the folder with its contents: 7z x {file}",
}
_EXPORT: Final = "Write a CSV with the columns path and label from it, one row for each picture."
_OLE: Final = b"\xd0\xcf\x11\xe0"


def refuse_other_files(path: Path, options: str = "") -> None:
    """Refuse spreadsheets, archives and other files that are no table of text.

    Args:
        path: the file.
        options: with which a table is read that is converted from it.

    Raises:
        DataError: if a file is one, by its content.
    """
    with path.open("rb") as file:
        head = file.read(_NUM_HEAD_BYTES)
    is_array = head.startswith(_NPY) or is_idx(path.name)
    refused = arrays_refused(path.parent) if is_array else known_set_refused(path)
    if refused is not None:
        raise refused
    if head.startswith(b"PK\x03\x04"):
        raise _zipped(path, options)
    if head.startswith(_OLE):
        raise spreadsheet_refused(path, "an Excel workbook (.xls)", ".xls", options)
    refuse_binary_table(path, head, options)
    for start, program in _UNPACKERS:
        if head.startswith(start):
            raise _packed(path, program)
    for start, what in _STARTS:
        if head.startswith(start):
            fix = pull_lfs(path) if what == _LFS else _FIXES.get(what, _EXPORT)
            raise DataError(
                f"this file is {what}, not a table",
                where=str(path),
                fix=fix.format(file=quoted(path), folder=quoted(path.parent)),
            )
    if head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise DataError(
            "this file is a web page, not a table",
            where=str(path),
            fix="Download the table itself, such as with the page's button Raw or Download.",
        )
    if 0 in head and encoding_of(path) == _TEXT:
        raise DataError("this file is binary, not a table of text", where=str(path), fix=_EXPORT)


def _zipped(path: Path, options: str) -> StepladderError:
    names: list[str] = []
    with contextlib.suppress(zipfile.BadZipFile, OSError, ValueError):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            is_sheet = "mimetype" in names and b"spreadsheet" in archive.read("mimetype")[:80]
        if is_sheet:
            return spreadsheet_refused(path, "an OpenDocument spreadsheet (.ods)", ".ods", options)
    if any(name.startswith("xl/") for name in names):
        is_binary = "xl/workbook.bin" in names
        ending = ".xlsb" if is_binary else ".xlsx"
        return spreadsheet_refused(path, f"an Excel workbook ({ending})", ending, options)
    is_npz = bool(names) and all(name.endswith(".npy") for name in names)
    if is_npz and (refused := arrays_refused(path)) is not None:
        return refused
    if path.suffix.lower() in _SPREADSHEETS:
        ending = path.suffix.lower()
        return spreadsheet_refused(path, f"a spreadsheet ({ending})", ending, options)
    return zip_refused(path, names)


def zip_refused(path: Path, names: list[str] | None = None) -> UsageError:
    """Return the error for a zip archive; the fix unpacks it."""
    if names is None:
        names = []
        with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if not name.startswith("__MACOSX")}
    top = next(iter(tops)) if len(tops) == 1 and all("/" in name for name in names) else ""
    folder = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}-unzipped")
    out = path.parent if top else folder
    source = path.parent / top if top else folder
    into = "" if str(out) == "." else f" -d {quoted(out)}"
    return UsageError(
        "this file is a zip archive, which cannot be read; only .tar and .tar.gz can",
        where=str(path),
        fix=f"Unpack it: unzip {quoted(path)}{into} && stepladder prepare {quoted(source)}",
    )


def _packed(path: Path, program: str) -> DataError:
    name = path.name.removesuffix(path.suffix) if path.suffix in {".gz", ".bz2", ".xz"} else ""
    out = path.with_name(name if "." in name else f"unpacked-{name or path.name}")
    return DataError(
        f"this file is compressed with {program}",
        where=str(path),
        fix=f"Unpack it: {program} -dc {quoted(path)} > {quoted(out)} && "
        f"stepladder prepare {quoted(out)}",
    )

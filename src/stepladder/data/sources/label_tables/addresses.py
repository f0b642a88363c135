"""Refuse a table whose pictures are addresses on the web, with the command that downloads them."""

from __future__ import annotations

import json
import re
from typing import Final

from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.label_tables.edits import rows_command
from stepladder.data.sources.label_tables.labels import label_candidates
from stepladder.data.sources.label_tables.paths import PathReader
from stepladder.data.sources.label_tables.reading import TableColumns, TableReading
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

ADDRESS: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_OF_WEB: Final = re.compile(r"(?:https?|ftp)://", re.IGNORECASE)
_OF_PICTURE: Final = re.compile(
    rf"\.(?:{'|'.join(sorted(suffix[1:] for suffix in PICTURE_SUFFIXES))})(?:[?#]|$)", re.IGNORECASE
)
_FOLDER: Final = "downloaded"
_BY_HAND: Final = "Download the pictures, and write their paths into the table."
_MAX_LETTERS: Final = 200
_SCRIPT: Final = r"""
import hashlib,os,sys,urllib.parse as P,urllib.request as U
def d(a,o):
 e=P.urlsplit(a).path.lower().rpartition(".")[2]
 e=e if e in {"png","gif","webp","tif","tiff","bmp","avif"} else "jpg"
 n=hashlib.sha1(a.encode()).hexdigest()[:16]+"."+e
 f=os.path.join(o,n)
 try:
  if not os.path.exists(f):
   b=U.urlopen(U.Request(a,headers={"User-Agent":"Mozilla/5.0"}),timeout=30).read()
   os.makedirs(o,exist_ok=True);open(f,"wb").write(b)
  return os.path.basename(o)+"/"+n
 except (OSError,ValueError) as x:print("left out:",a,x,file=sys.stderr)
"""
"""Python code: `d(address, folder)` downloads a file and returns its path, or None."""


def find_addresses(reading: TableReading) -> int | None:
    """Return the column of addresses of pictures; None if no column has one.

    Of several, it is the one of files that end as pictures do, else the first.
    """
    found = []
    for at in range(len(reading.file.header)):
        cells = [cell.strip() for cell in reading.cells(at)]
        num = sum(ADDRESS.match(cell) is not None for cell in cells)
        if cells and 2 * num > len(cells):
            is_picture = 2 * sum(_OF_PICTURE.search(cell) is not None for cell in cells) > num
            found.append((not is_picture, at))
    return min(found)[1] if found else None


def addresses_refused(reading: TableReading, at: int) -> DataError:
    """Return the error for a column of addresses."""
    cells = [cell.strip() for cell in reading.cells(at)]
    example = next(cell for cell in cells if ADDRESS.match(cell))
    return DataError(
        f"the pictures are not here: column {reading.file.header[at]!r} has their addresses, such "
        f"as {printable(example)[:_MAX_LETTERS]!r}",
        where=str(reading.path),
        why="Only pictures that are files can be read, so they have to be downloaded first.",
        fix=download(reading, at),
    )


def download(reading: TableReading, at: int) -> str:
    """Return how to download the pictures of a column, and to read the table with their paths."""
    cells = [cell.strip() for cell in reading.cells(at)]
    if not all(_OF_WEB.match(cell) for cell in cells if ADDRESS.match(cell)):
        return _BY_HAND
    label_at = reading.index(reading.config.label_column)
    if label_at is None:
        label_at = next(iter(label_candidates(reading.file, {at})), None)
    folder = json.dumps(str(reading.root / _FOLDER))
    function = (
        f"(lambda n:(exec({json.dumps(_SCRIPT.strip())},n),lambda r:(lambda p:p and "
        f'[*r[:{at}],p,*r[{at + 1}:]])(n["d"](r[{at}].strip(),{folder})) if len(r)>{at} else r)[1])'
        "({})"
    )
    split_at = reading.index(reading.config.split_column)
    options = reading.options(TableColumns(at, label_at, split_at), PathReader())
    command = rows_command(reading, function, _FOLDER, options)
    if command is None:
        return _BY_HAND
    return f"Download them into {printable(str(reading.root / _FOLDER))} and read them: {command}"

"""Tables that hold the pictures themselves: pixel values, base64 or bytes in place of paths."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.walk import printable

_MIN_PIXELS: Final = 64
_NUM_LOOKED_AT: Final = 20
NUMBER: Final = re.compile("[0-9.eE+-]+")
"""A value of a pixel within a cell."""
_NUMBERS: Final = re.compile(r"[\s\[(]*[0-9.eE+-]+(?:[\s,;|]+[0-9.eE+-]+)*[\s\])]*")
_BASE64: Final = re.compile(r"(?:data:image/[a-z0-9.+-]+;base64,|/9j/|iVBORw0KGgo|R0lGOD|UklGR)")
_BYTES: Final = re.compile(r"(?:b['\"]|\{['\"]bytes['\"]: *b['\"])")
_DECODED: Final = {
    "base64": 'base64.b64decode(c.partition("base64,")[2] or c)',
    "bytes": '(lambda v:v["bytes"] if isinstance(v,dict) else v)(ast.literal_eval(c))',
}


@dataclass(frozen=True)
class PixelCells:
    """The columns that hold pictures.

    Attributes:
        columns: their indices, one after the other.
        kind: pixels, base64 or bytes.
        shape: height, width and channels in Python, for pixels; empty if it is unknown.
        scale: what the pixels are multiplied with for 0 to 255.
    """

    columns: range
    kind: str
    shape: str = ""
    scale: int = 1

    def describe(self, header: Sequence[str]) -> str:
        """Return what is wrong, in one sentence."""
        first, last = header[self.columns[0]], header[self.columns[-1]]
        if len(self.columns) > 1:
            return f"the columns {first!r} to {last!r} hold pixel values, not paths of pictures"
        what = {"pixels": "pixel values", "base64": "pictures in base64", "bytes": "bytes"}
        return f"the column {first!r} holds {what[self.kind]}, not paths of pictures"

    def conversion(self, file: TableCells, path: Path, *, is_headerless: bool) -> str:
        """Return the command that writes the pictures, and a table of their paths."""
        out = path.with_name(f"{path.stem}-pictures")
        if file.unit != "row" or (self.kind == "pixels" and not self.shape):
            return (
                "Save each of them as a picture, and write a table with the columns path and label."
            )
        at, end = self.columns[0], self.columns[-1] + 1
        names = [name for index, name in enumerate(file.header) if index not in self.columns]
        names = ["label"] if len(names) == 1 else names
        if self.kind == "pixels":
            modules = "csv,numpy,pathlib,re,sys"
            picture = 're.findall("[0-9.eE+-]+"," ".join(r[a:b]))'
            picture = f'(numpy.array({picture},float)*{self.scale}).astype("uint8")'
            picture = f"Image.fromarray({picture}.reshape({self.shape}))"
        else:
            modules = "ast,base64,csv,io,pathlib,sys"
            picture = f"(lambda c:Image.open(io.BytesIO({_DECODED[self.kind]})))(r[a])"
        num_before = max(file.header_row - is_headerless, 0)
        script = (
            f"import {modules};from PIL import Image;csv.field_size_limit(2**30);a,b={at},{end};"
            "o=pathlib.Path(sys.argv[2]);o.mkdir(exist_ok=True);"
            f't=csv.reader(open(sys.argv[1],encoding="{file.encoding}",newline=""),'
            f"delimiter={json.dumps(file.delimiter)},skipinitialspace=True);"
            'w=csv.writer(open(o/"labels.csv","w",encoding="utf-8",newline=""));'
            f"w.writerow({json.dumps(['path', *names])});"
            f"[({picture}.save(p),w.writerow([p.name,*r[:a],*r[b:]])) for i,r in enumerate(t) "
            f'if i>={num_before} and r for p in [o/f"{{i:06}}.png"]]'
        )
        places = " ".join(shlex.quote(printable(str(one))) for one in (path, out))
        table = shlex.quote(printable(str(out / "labels.csv")))
        command = f"Save them as pictures: python -c {shlex.quote(script)} {places} && "
        return f"{command}stepladder prepare {table}"


def find_pixels(file: TableCells) -> PixelCells | None:
    """Return the columns that hold pictures; None if there are no such columns."""
    rows = [cells for _, cells in file.body[:_NUM_LOOKED_AT] if len(cells) == len(file.header)]
    if not rows:
        return None
    for at in range(len(file.header)):
        cells = [row[at].strip() for row in rows if row[at].strip()]
        for kind, start in (("base64", _BASE64), ("bytes", _BYTES)):
            if cells and all(map(start.match, cells)):
                return PixelCells(range(at, at + 1), kind)
        if cells and all(len(one) >= _MIN_PIXELS and _NUMBERS.fullmatch(one) for one in cells):
            return _of_pixels(range(at, at + 1), [NUMBER.findall(cell) for cell in cells])
    is_number = [all(map(_is_pixel, cells)) for cells in zip(*rows, strict=True)]
    return _of_columns(is_number, rows)


def _of_columns(is_number: Sequence[bool], rows: Sequence[Sequence[str]]) -> PixelCells | None:
    """Return the longest run of columns of numbers, without a label that is one, too."""
    text = "".join("01"[one] for one in is_number)
    run = max(re.finditer("1+", text), key=lambda match: len(match[0]), default=None)
    if run is None or len(run[0]) < _MIN_PIXELS:
        return None
    start, stop = run.span()
    tried = (range(start, stop), range(start + 1, stop), range(start, stop - 1))
    columns = next((one for one in tried if _shape(len(one))), tried[0])
    return _of_pixels(columns, [list(row[columns[0] : columns[-1] + 1]) for row in rows])


def _of_pixels(columns: range, values: Sequence[Sequence[str]]) -> PixelCells | None:
    lengths = {len(one) for one in values}
    if min(lengths) < _MIN_PIXELS:
        return None
    shape = _shape(lengths.pop()) if len(lengths) == 1 else ""
    is_fraction = any("." in cell for one in values for cell in one) and all(
        float(cell) <= 1 for one in values for cell in one if _is_pixel(cell)
    )
    return PixelCells(columns, "pixels", shape, 255 if is_fraction else 1)


def _shape(num: int) -> str:
    """Return the shape of a square picture with this many values: grey, else RGB."""
    for channels in (1, 3):
        side = math.isqrt(num // channels)
        if side * side * channels == num:
            return f"{side},{side}" + (",3" if channels > 1 else "")
    return ""


def _is_pixel(cell: str) -> bool:
    return re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*", cell) is not None

"""Tables that hold the pictures themselves: pixel values, base64 or bytes in place of paths."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.label_tables.pixel_columns import (
    MIN_PIXELS,
    PixelColumns,
    find_columns,
    runs_of,
    shape_of,
)
from stepladder.data.sources.walk import printable

_NUM_LOOKED_AT: Final = 20
_MAX_RUNS: Final = 5  # of columns in a command
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
        columns: their indices, in the order of the pixels.
        kind: pixels, base64 or bytes.
        shape: height, width and channels in Python, for pixels; empty if it is unknown.
        scale: what the pixels are multiplied with for 0 to 255.
        found: how the columns were chosen, for a column for each pixel.
    """

    columns: Sequence[int]
    kind: str
    shape: str = ""
    scale: int = 1
    found: PixelColumns | None = None

    def describe(self, header: Sequence[str]) -> str:
        """Return what is wrong, in one sentence."""
        first, last = header[min(self.columns)], header[max(self.columns)]
        if len(self.columns) > 1:
            return f"the columns {first!r} to {last!r} hold pixel values, not paths of pictures"
        what = {"pixels": "pixel values", "base64": "pictures in base64", "bytes": "bytes"}
        return f"the column {first!r} holds {what[self.kind]}, not paths of pictures"

    def conversion(self, file: TableCells, path: Path, *, is_headerless: bool) -> str:
        """Return the command that writes the pictures, and a table of their paths."""
        out = path.with_name(f"{path.stem}-pictures")
        runs = runs_of(self.columns)
        is_unknown = self.kind == "pixels" and not self.shape
        if file.unit != "row" or is_unknown or len(runs) > _MAX_RUNS:
            return (
                "Save each of them as a picture, and write a table with the columns path and label."
            )
        taken = set(self.columns)
        names = [name for index, name in enumerate(file.header) if index not in taken]
        names = ["label"] if len(names) == 1 else names
        if self.kind == "pixels":
            modules = "csv,numpy,pathlib,re,sys"
            picture = 're.findall("[0-9.eE+-]+"," ".join(r[j] for j in k))'
            picture = f'(numpy.array({picture},float)*{self.scale}).astype("uint8")'
            picture = f"Image.fromarray({picture}.reshape({self.shape}))"
        else:
            modules = "ast,base64,csv,io,pathlib,sys"
            picture = f"(lambda c:Image.open(io.BytesIO({_DECODED[self.kind]})))(r[k[0]])"
        num_before = max(file.header_row - is_headerless, 0)
        script = (
            f"import {modules};from PIL import Image;csv.field_size_limit(2**30);"
            f"k=[{','.join(f'*range({run.start},{run.stop})' for run in runs)}];n={{*k}};"
            "o=pathlib.Path(sys.argv[2]);o.mkdir(exist_ok=True);"
            f't=csv.reader(open(sys.argv[1],encoding="{file.encoding}",newline=""),'
            f"delimiter={json.dumps(file.delimiter)},skipinitialspace=True);"
            'w=csv.writer(open(o/"labels.csv","w",encoding="utf-8",newline=""));'
            f"w.writerow({json.dumps(['path', *names])});"
            f"[({picture}.save(p),w.writerow([p.name,*(c for j,c in enumerate(r) if j not in n)])) "
            "for i,r in enumerate(t) "
            f'if i>={num_before} and r for p in [o/f"{{i:06}}.png"]]'
        )
        places = " ".join(shlex.quote(printable(str(one))) for one in (path, out))
        table = shlex.quote(printable(str(out / "labels.csv")))
        command = f"Save them as pictures: python -c {shlex.quote(script)} {places} && "
        return f"{command}stepladder prepare {table}"


def find_pixels(
    file: TableCells, named: Iterable[str | None] = (), sizes: Set[int] = frozenset()
) -> PixelCells | None:
    """Return the columns that hold pictures; None if there are no such columns.

    Args:
        file: the cells.
        named: columns that mean something else.
        sizes: numbers of values that a picture may have; empty: those of squares.
    """
    rows = [cells for _, cells in file.body[:_NUM_LOOKED_AT] if len(cells) == len(file.header)]
    if not rows:
        return None
    for at in range(len(file.header)):
        cells = [row[at].strip() for row in rows if row[at].strip()]
        for kind, start in (("base64", _BASE64), ("bytes", _BYTES)):
            if cells and all(map(start.match, cells)):
                return PixelCells((at,), kind)
        if cells and all(len(one) >= MIN_PIXELS and _NUMBERS.fullmatch(one) for one in cells):
            return _of_pixels([NUMBER.findall(cell) for cell in cells], (at,))
    numeric = [at for at, cells in enumerate(zip(*rows, strict=True)) if all(map(_is_pixel, cells))]
    found = find_columns(file, numeric, {name for name in named if name}, sizes)
    if found is None:
        return None
    values = [[row[at] for at in found.columns] for row in rows]
    pixels = _of_pixels(values, found.columns, found)
    return pixels if found.is_sure or pixels is None else replace(pixels, shape="")


def _of_pixels(
    values: Sequence[Sequence[str]], columns: Sequence[int], found: PixelColumns | None = None
) -> PixelCells | None:
    lengths = {len(one) for one in values}
    if min(lengths) < MIN_PIXELS:
        return None
    shape = shape_of(lengths.pop()) if len(lengths) == 1 else ""
    is_fraction = any("." in cell for one in values for cell in one) and all(
        float(cell) <= 1 for one in values for cell in one if _is_pixel(cell)
    )
    return PixelCells(tuple(columns), "pixels", shape, 255 if is_fraction else 1, found)


def _is_pixel(cell: str) -> bool:
    return re.fullmatch(r"\s*[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*", cell) is not None

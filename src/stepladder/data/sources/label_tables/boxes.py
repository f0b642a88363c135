"""Tables of boxes, as object detection has them: recognize them, and cut the boxes out."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.data.sources.label_tables.chooser import Chosen
from stepladder.data.sources.label_tables.labels import is_number, plain_name
from stepladder.data.sources.label_tables.reading import TableReading, prepare_command
from stepladder.data.sources.walk import printable

_CORNERS: Final = (
    ("xmin", "ymin", "xmax", "ymax"),
    ("x_min", "y_min", "x_max", "y_max"),
    ("x1", "y1", "x2", "y2"),
    ("left", "top", "right", "bottom"),
)
_SIZES: Final = (
    ("x", "y", "w", "h"),
    ("x", "y", "width", "height"),
    ("xmin", "ymin", "width", "height"),
    ("left", "top", "width", "height"),
    ("bbox_x", "bbox_y", "bbox_width", "bbox_height"),
)
_GROUP: Final = "([^/]+)_box"


@dataclass(frozen=True)
class Boxes:
    """The columns of boxes.

    Attributes:
        names: left, top, right and bottom, or left, top, width and height.
        columns: their indices.
        has_size: whether the last two are width and height.
        are_fractions: whether they are fractions of the picture's size.
    """

    names: tuple[str, ...]
    columns: tuple[int, ...]
    has_size: bool
    are_fractions: bool

    def describe(self) -> str:
        """Return what the columns are."""
        return f"the columns {', '.join(self.names)} are boxes, as of object detection"


def find_boxes(reading: TableReading) -> Boxes | None:
    """Return the columns of boxes by their names and cells; None without such columns."""
    header = reading.file.header
    plain = [plain_name(name) for name in header]
    for named, has_size in (*((one, False) for one in _CORNERS), *((one, True) for one in _SIZES)):
        if not set(named) <= set(plain):
            continue
        columns = tuple(plain.index(name) for name in named)
        cells = [row[at].strip() for _, row in reading.file.body for at in columns]
        if cells and all(map(is_number, cells)):
            are_fractions = all(0 <= float(cell) <= 1 for cell in cells)
            names = tuple(header[at] for at in columns)
            return Boxes(names, columns, has_size, are_fractions)
    return None


def cutting(boxes: Boxes, reading: TableReading, chosen: Chosen) -> str | None:
    """Return the command that saves each box as a picture of its class, and reads these.

    Args:
        boxes: the columns.
        reading: the table.
        chosen: what its columns mean.

    Returns:
        None if the table is not one CSV with a column of labels, or its pictures are found in
        another way than by one pattern.
    """
    file = reading.file
    to_path = chosen.to_path
    is_plain = file.unit == "row" and reading.folder is None and file.delimiter in ",;\t|"
    is_one_pattern = not (to_path.others or to_path.has_backslashes or to_path.cut)
    if not is_plain or chosen.is_one_hot or not is_one_pattern:
        return None
    if to_path.num_digits or to_path.find is not None:
        return None
    left, top, right, bottom = (f"float(r[{at}])" for at in boxes.columns)
    split = "" if chosen.split is None else f"/r[{chosen.split}].strip()"
    num_before = max(file.header_row - reading.is_headerless, 0)
    box = f"({left},{top},{right},{bottom})"
    if boxes.has_size:
        box = f"({left},{top},{left}+{right},{top}+{bottom})"
    if boxes.are_fractions:
        box = f"[v*s for v,s in zip({box},i.size*2)]"
    script = (
        "import csv,pathlib,sys;from PIL import Image;"
        "t,o=map(pathlib.Path,sys.argv[1:]);"
        f'[(d.mkdir(parents=True,exist_ok=True),i.crop([round(v) for v in {box}]).convert("RGB")'
        '.save(d/f"{p.stem}_box{k}.png")) '
        f'for k,r in enumerate(csv.reader(open(t,encoding="{file.encoding}",newline=""),'
        f"delimiter={json.dumps(file.delimiter)},skipinitialspace=True)) if k>={num_before} and r "
        f"for p in [t.parent/{json.dumps(to_path.path_format)}.format(r[{chosen.path}].strip())]"
        f" for i in [Image.open(p)] for d in [o{split}/r[{chosen.columns[0]}].strip()]]"
    )
    out = reading.path.with_name(f"{reading.path.stem}-boxes")
    return (
        f"python -c {shlex.quote(script)} {_quoted(reading.path)} {_quoted(out)} && "
        f"{prepare_command(out)} --group-by {shlex.quote(_GROUP)}"
    )


def _quoted(path: Path) -> str:
    return shlex.quote(printable(str(path)))

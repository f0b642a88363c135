"""Tables of boxes are named as such, with a command that cuts the boxes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

BOXES = [
    ("a.png", "cat", (2, 3, 12, 13)),
    ("a.png", "dog", (20, 5, 30, 25)),
    ("b.png", "cat", (0, 0, 5, 9)),
]
CORNERS = "xmin,ymin,xmax,ymax"
SIZES = "x,y,width,height"


def table_of(
    folder: Path, header: str, boxes: list[tuple[str, str, tuple[int, ...]]], *, scale: int = 1
) -> Path:
    (folder / "train").mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((40, 40, 3), dtype=np.uint8)).save(folder / "train" / name)
    lines = [f"filename,class,{header}"]
    for name, label, (left, top, right, bottom) in boxes:
        box = (
            (left, top, right, bottom)
            if header != SIZES
            else (left, top, right - left, bottom - top)
        )
        lines.append(",".join((name, label, *(str(one / scale) for one in box))))
    table = folder / "my boxes.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


@pytest.mark.parametrize(
    ("header", "scale"), [(CORNERS, 1), ("XMin,YMin,XMax,YMax", 40), (SIZES, 1), ("x1,y1,x2,y2", 1)]
)
def test_boxes_of_several_classes_are_cut_out_by_the_command(
    tmp_path: Path, header: str, scale: int
) -> None:
    table = table_of(tmp_path, header, BOXES, scale=scale)
    with pytest.raises(
        DataError, match=r"different labels.* are boxes, as of object det"
    ) as caught:
        list_pictures(PrepareConfig(source=table))
    assert f"the columns {header.replace(',', ', ')} are boxes" in caught.value.what
    found = typed_listing(commands_in(caught.value.fix)[0])
    sizes = set()
    for one in found.pictures:
        with Image.open(found.file(one)) as picture:
            sizes.add((one.label, picture.size))
    assert sizes == {("cat", (10, 10)), ("dog", (10, 20)), ("cat", (5, 9))}


def test_boxes_are_cut_out_into_their_splits(tmp_path: Path) -> None:
    table = table_of(tmp_path, CORNERS, [*BOXES, ("b.png", "dog", (1, 1, 9, 9))])
    header, *rows = table.read_text().splitlines()
    rows = [f"{row},{'train' if row.startswith('a') else 'valid'}" for row in rows]
    table.write_text("\n".join([f"{header},split", *rows]) + "\n")
    with pytest.raises(DataError, match="different labels") as caught:
        list_pictures(PrepareConfig(source=table))
    found = typed_listing(commands_in(caught.value.fix)[0]).pictures
    assert sorted((one.split, one.label) for one in found if one.split) == [
        (split, label) for split in (Split.TRAIN, Split.VAL) for label in ("cat", "dog")
    ]


def test_boxes_of_one_class_are_a_warning(tmp_path: Path) -> None:
    boxes = [("a.png", "cat", (2, 3, 12, 13)), ("a.png", "cat", (5, 6, 7, 8)), BOXES[2]]
    table = table_of(tmp_path, CORNERS, [*boxes[:2], ("b.png", "dog", (0, 0, 5, 9))])
    warnings = " ".join(list_pictures(PrepareConfig(source=table)).warnings)
    assert "the columns xmin, ymin, xmax, ymax are boxes" in warnings


def test_a_column_of_widths_alone_is_no_box(tmp_path: Path) -> None:
    table = table_of(tmp_path, "width,height,x,other", BOXES)
    with pytest.raises(DataError, match="different labels") as caught:
        list_pictures(PrepareConfig(source=table))
    assert "are boxes" not in str(caught.value)

"""A table that holds the pictures themselves is named, with the command that saves them."""

from __future__ import annotations

import base64
import io
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, StepladderError

GREY = [np.arange(64).reshape(8, 8) + 10 * at for at in range(3)]
COLOUR = [np.arange(192).reshape(8, 8, 3) + 10 * at for at in range(3)]


def png(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(array.astype("uint8")).save(data, "PNG")
    return data.getvalue()


def text_of(array: np.ndarray, separator: str = " ") -> str:
    return separator.join(map(str, array.ravel().tolist()))


def converted(table: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Run the command of the error, and list the table that it writes."""
    with pytest.raises(DataError) as error:
        list_pictures(PrepareConfig(source=table))
    save, _, prepare = str(error.value.fix).partition(": ")[2].rpartition(" && stepladder prepare ")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    subprocess.run(["bash", "-c", save], check=True, capture_output=True)
    return list_pictures(PrepareConfig(source=Path(*shlex.split(prepare))))


@pytest.mark.parametrize("arrays", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize(
    "rows",
    [
        lambda arrays: ["emotion,pixels,Usage", *_lines(arrays, "{label},{pixels},{usage}")],
        lambda arrays: ["label;image", *_lines(arrays, '{label};"[{pixels}]"')],
        lambda arrays: [
            "label," + ",".join(f"pixel{at}" for at in range(arrays[0].size)),
            *_lines(arrays, "{label},{cells}"),
        ],
        lambda arrays: _lines(arrays, "{label},{cells}"),
        lambda arrays: ["image,label", *_lines(arrays, "{base64},{label}")],
        lambda arrays: ["image,label", *_lines(arrays, '"data:image/png;base64,{base64}",{label}')],
        lambda arrays: ["image,label", *_lines(arrays, '"{bytes}",{label}')],
    ],
    ids=["fer2013", "list", "columns", "no-header", "base64", "data-url", "bytes"],
)
def test_pictures_in_cells_are_saved_by_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrays: list[np.ndarray],
    rows: Callable[[list[np.ndarray]], list[str]],
) -> None:
    table = tmp_path / "my table.csv"
    lines = rows(arrays)
    table.write_text("\n".join(lines))
    listing = converted(table, monkeypatch)
    assert [picture.label for picture in listing.pictures] == ["1", "2", "1"]
    for picture, array in zip(listing.pictures, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(listing.file(picture))), array)
    if "Usage" in lines[0]:
        assert [str(picture.split) for picture in listing.pictures] == ["train", "val", "test"]


def _lines(arrays: list[np.ndarray], shape: str) -> list[str]:
    return [
        shape.format(
            label=label,
            usage=usage,
            pixels=text_of(array),
            cells=text_of(array, ","),
            base64=base64.b64encode(png(array)).decode(),
            bytes=str({"bytes": png(array)}).replace('"', '""'),
        )
        for array, label, usage in zip(
            arrays, (1, 2, 1), ("Training", "PublicTest", "PrivateTest"), strict=True
        )
    ]


def test_pixels_of_an_unknown_shape_are_named_without_a_command(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("label,pixels\n" + "".join(f"{at},{'7 ' * 70}\n" for at in "121"))
    with pytest.raises(DataError, match="'pixels' holds pixel values") as error:
        list_pictures(PrepareConfig(source=table))
    assert "table with the columns path and label" in str(error.value)


@pytest.mark.parametrize("header", ["path,label", "id,kind", "image,label"])
@pytest.mark.parametrize(
    "cell",
    [
        "x" * 300,
        "x/" * 3000,
        "7 " * 3000,
        "\x00",
        "x" * 200_000,
        "é" * 200,
        "a\u2028b",
        "../" * 900,
    ],
    ids=["long", "deep", "numbers", "null", "huge", "accents", "separator", "above"],
)
def test_no_text_of_a_cell_is_a_crash(tmp_path: Path, header: str, cell: str) -> None:
    (tmp_path / "1.jpg").write_text("x")
    table = tmp_path / "labels.csv"
    table.write_text(f"{header}\n" + "".join(f"{cell}{at},{at}\n" for at in range(3)))
    for options in ({}, {"path_column": header.partition(",")[0]}, {"path_format": "x/{}.jpg"}):
        with pytest.raises(StepladderError) as error:
            list_pictures(PrepareConfig(source=table, **options))
        assert len(str(error.value)) < 1500 + 2 * len(str(tmp_path))

"""Columns of pixels are distinguished from the class and other numbers, wherever these are."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.contract import Item
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.errors import DataError, UsageError

NUM = 60
GREY = np.random.default_rng(1).integers(0, 256, (NUM, 8, 8))
COLOUR = np.random.default_rng(2).integers(0, 256, (NUM, 8, 8, 3))
LABELS = [(2, 4, 6)[at % 3] for at in range(NUM)]
PIXEL = [f"pixel{at:04}" for at in range(64)]
PLACES = [f"{row}x{column}" for row in range(1, 9) for column in range(1, 9)]


def write(path: Path, names: list[str] | None, rows: list[list[Any]], comma: str = ",") -> Path:
    lines = [names] if names else []
    path.write_text("".join(f"{comma.join(map(str, one))}\n" for one in (*lines, *rows)))
    return path


def read(source: Path, **options: Any) -> list[Item]:
    pictures = open_pictures(PrepareConfig(source=source, **options))
    (container,) = pictures._open_source(None).containers  # type: ignore[attr-defined]
    return [item for batch in container.items() for item in batch]


def require(items: list[Item], arrays: np.ndarray = GREY, labels: list[Any] = LABELS) -> None:
    assert [item.label for item in items] == [str(one) for one in labels]
    for item, array in zip(items, arrays, strict=True):
        assert item.data.endswith(array.astype(np.uint8).tobytes())
    assert {len(item.data) for item in items} == {len(items[0].data)}


@pytest.mark.parametrize("label", ["label", "class", "target", "y", "emotion", "Lesion Type"])
@pytest.mark.parametrize("place", [0, 30, 64], ids=["first", "middle", "last"])
@pytest.mark.parametrize(
    "names",
    [PIXEL, [f"pixel{at}" for at in range(1, 65)], PLACES, [f"px_{at}" for at in range(64)]],
    ids=["zeros", "from-1", "1x1", "px"],
)
def test_a_label_is_no_pixel_wherever_it_is(
    tmp_path: Path, label: str, place: int, names: list[str]
) -> None:
    rows = [list(array.ravel()) for array in GREY]
    for row, one in zip(rows, LABELS, strict=True):
        row.insert(place, one)
    header = [*names[:place], label, *names[place:]]
    require(read(write(tmp_path / "hmnist.csv", header, rows)))


@pytest.mark.parametrize("place", [0, 192], ids=["first", "last"])
def test_a_label_is_no_channel(tmp_path: Path, place: int) -> None:
    rows = [list(array.ravel()) for array in COLOUR]
    for row, one in zip(rows, LABELS, strict=True):
        row.insert(place, one)
    names = [f"pixel{at}" for at in range(192)]
    header = [*names[:place], "label", *names[place:]]
    require(read(write(tmp_path / "rgb.csv", header, rows)), COLOUR)


@pytest.mark.parametrize("index", ["id", "", "Unnamed: 0", "ImageId"])
@pytest.mark.parametrize("label", ["label", "class", "y"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_index_is_neither_a_pixel_nor_the_label(
    tmp_path: Path, index: str, label: str, is_first: bool
) -> None:
    rows = [[at, *array.ravel(), LABELS[at]] for at, array in enumerate(GREY)]
    header = [index, *PIXEL, label]
    if not is_first:
        rows = [[*row[1:], row[0]] for row in rows]
        header = [*header[1:], header[0]]
    require(read(write(tmp_path / "t.csv", header, rows)))


def test_columns_sorted_as_text_are_read_by_their_numbers(tmp_path: Path) -> None:
    names = [f"pixel{at}" for at in range(64)]
    order = sorted(range(64), key=lambda at: names[at])
    rows = [[LABELS[at], *array.ravel()[order]] for at, array in enumerate(GREY)]
    source = write(tmp_path / "t.csv", ["label", *(names[at] for at in order)], rows)
    require(read(source))
    opened = open_pictures(PrepareConfig(source=source))._open_source(None)  # type: ignore[attr-defined]
    assert any("in the order of the numbers in their names" in one for one in opened.warnings)


@pytest.mark.parametrize("shape", ["{}{}", "{}_{}", "pixel_{1}_{0}"])
def test_a_column_for_each_channel_is_read_by_its_name(tmp_path: Path, shape: str) -> None:
    names = [shape.format(channel, at) for channel in "bgr" for at in range(64)]
    rows = [
        [*array.reshape(64, 3)[:, ::-1].T.ravel(), LABELS[at]] for at, array in enumerate(COLOUR)
    ]
    require(read(write(tmp_path / "t.csv", [*names, "label"], rows)), COLOUR)


def test_unknown_groups_of_columns_are_refused(tmp_path: Path) -> None:
    names = [f"{kind}{at}" for kind in ("near", "far", "mid") for at in range(64)]
    rows = [[*array.ravel(), LABELS[at]] for at, array in enumerate(COLOUR)]
    with pytest.raises(DataError, match="hold pixel values, not paths"):
        read(write(tmp_path / "t.csv", [*names, "label"], rows))


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("has_numbers", [True, False], ids=["numbered", "headerless"])
@pytest.mark.parametrize("order", ["mixed", "sorted"])
def test_without_names_the_column_that_can_be_classes_is_the_label(
    tmp_path: Path, is_first: bool, has_numbers: bool, order: str
) -> None:
    labels = sorted(LABELS) if order == "sorted" else LABELS
    arrays = np.concatenate([GREY, GREY[::-1]])
    arrays = np.concatenate([arrays, arrays])
    labels = [one for one in labels for _ in range(4)]
    arrays[:, 0, 0] = arrays[:, 7, 7] = 0  # as in MNIST
    rows = [
        [one, *array.ravel()] if is_first else [*array.ravel(), one]
        for one, array in zip(labels, arrays, strict=True)
    ]
    names = list(map(str, range(65))) if has_numbers else None
    require(read(write(tmp_path / "t.csv", names, rows)), arrays, labels)


@pytest.mark.parametrize("comma", [",", ";", "\t"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("has_numbers", [True, False], ids=["numbered", "headerless"])
def test_two_ends_that_can_be_classes_are_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    comma: str,
    is_first: bool,
    has_numbers: bool,
) -> None:
    arrays = GREY.copy()
    arrays[:, 0, 0] = arrays[:, 7, 7] = [at % 4 for at in range(NUM)]
    rows = [
        [LABELS[at], *array.ravel()] if is_first else [*array.ravel(), LABELS[at]]
        for at, array in enumerate(arrays)
    ]
    names = list(map(str, range(65))) if has_numbers else None
    source = write(tmp_path / "my table.csv", names, rows, comma)
    with pytest.raises(UsageError, match="not clear whether the class is") as error:
        read(source)
    monkeypatch.chdir(tmp_path)
    first, _, last = str(error.value.fix).partition(". If the last one is: ")
    command = first.partition(": ")[2] if is_first else last
    *edit, prepare = command.split(" && ")
    for one in edit:
        subprocess.run(["bash", "-c", one], check=True)
    _, _, path, *flags = shlex.split(prepare)
    options = {"label_column": flags[1]} if flags else {}
    require(read(Path(path), **options), arrays)


def test_a_count_and_a_text_beside_pixels_without_names(tmp_path: Path) -> None:
    rows = [[at, *array.ravel(), "abc"[at % 3]] for at, array in enumerate(GREY)]
    require(
        read(write(tmp_path / "t.csv", None, rows)), labels=["abc"[at % 3] for at in range(NUM)]
    )

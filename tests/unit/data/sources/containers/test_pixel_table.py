"""Tables that hold the pictures themselves are read, as Kaggle has them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.pictures import FilePictures
from stepladder.errors import DataError

NUM = 12
GREY = [np.random.default_rng(at).integers(0, 256, (8, 8)) for at in range(NUM)]
COLOUR = [np.random.default_rng(at).integers(0, 256, (8, 8, 3)) for at in range(NUM)]
LABELS = ["0", "1", "10", "2"]
USAGES = ["Training"] * 8 + ["PublicTest"] * 4


def cells_of(array: np.ndarray, separator: str = ",") -> str:
    return separator.join(map(str, array.ravel().tolist()))


def columns(arrays: list[np.ndarray], shop: Any) -> list[str]:
    del shop
    names = ",".join(f"pixel{at}" for at in range(arrays[0].size))
    return [f"label,{names}", *(f"{LABELS[k % 4]},{cells_of(a)}" for k, a in enumerate(arrays))]


def headerless(arrays: list[np.ndarray], shop: Any) -> list[str]:
    return columns(arrays, shop)[1:]


def fractions(arrays: list[np.ndarray], shop: Any) -> list[str]:
    return columns([array / 255 for array in arrays], shop)


def semicolons(arrays: list[np.ndarray], shop: Any) -> list[str]:
    return [line.replace(",", ";") for line in columns(arrays, shop)]


def one_column(arrays: list[np.ndarray], shop: Any) -> list[str]:
    del shop
    rows = [f"{LABELS[k % 4]},{cells_of(a, ' ')},{USAGES[k]}" for k, a in enumerate(arrays)]
    return ["emotion,pixels,Usage", *rows]


def in_base64(arrays: list[np.ndarray], shop: Any) -> list[str]:
    pictures = [shop.encode(array.astype(np.uint8)) for array in arrays]
    rows = [f"{base64.b64encode(p).decode()},{LABELS[k % 4]}" for k, p in enumerate(pictures)]
    return ["image,label", *rows]


FORMS = [columns, headerless, fractions, semicolons, one_column, in_base64]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("arrays", [GREY, COLOUR], ids=["grey", "colour"])
def test_pictures_in_rows_become_a_store(
    shop: Any, form: Callable[..., list[str]], arrays: list[np.ndarray]
) -> None:
    source = shop.folder / "my train.csv"
    source.write_text("\n".join(form(arrays, shop)) + "\n")
    config = PrepareConfig(source=source)
    (container,) = open_pictures(config)._open_source(None).containers  # type: ignore[attr-defined]
    items = [item for batch in container.items() for item in batch]
    assert [item.label for item in items] == [LABELS[at % 4] for at in range(NUM)]
    result = shop.make(source)
    assert set(shop.labels(result.folder).values()) == set(LABELS)
    assert result.num_bad == 0
    if form is one_column:
        assert not any("became val" in said for said in result.warnings)
    for item, array in zip(items, arrays, strict=True):
        if form is not in_base64:
            assert item.data.endswith(array.astype(np.uint8).tobytes())
    if form is columns:
        assert any("'pixel0' to 'pixel" in said and "8x8" in said for said in result.warnings)


def test_columns_that_pandas_numbered_are_pixels_beside_an_index_and_a_label(shop: Any) -> None:
    source = shop.folder / "train.csv"
    names = ",".join(map(str, range(GREY[0].size)))
    rows = [f"{at},{cells_of(array)},{'abcd'[at % 4]}" for at, array in enumerate(GREY)]
    source.write_text("\n".join([f",{names},letter", *rows]) + "\n")
    result = shop.make(source)
    assert set(shop.labels(result.folder).values()) == set("abcd")
    assert result.num_bad == 0


def test_rows_with_impossible_pixels_are_bad_pictures(shop: Any) -> None:
    arrays = [*GREY, GREY[0] + 300]
    source = shop.folder / "train.csv"
    source.write_text("\n".join(columns(arrays, shop)) + "\n")
    result = shop.make(source, max_bad=0.2)
    assert result.num_bad == 1


def test_a_row_of_another_length_is_named(shop: Any) -> None:
    source = shop.folder / "train.csv"
    source.write_text("\n".join([*columns(GREY * 9, shop), "1,2,3"]) + "\n")
    with pytest.raises(DataError, match="row 110: wrong number of cells"):
        shop.make(source)


@pytest.mark.parametrize("kind", ["features", "one-hot"])
def test_numbers_beside_names_of_pictures_are_no_pixels(tmp_path: Path, kind: str) -> None:
    rows = ["id," + ",".join(f"c{at}" for at in range(64)) + ",label"]
    for at in range(NUM):
        (tmp_path / f"p{at}.jpg").write_bytes(b"x")
        numbers = GREY[at] if kind == "features" else (np.arange(64) == at).reshape(8, 8) * 1
        rows.append(
            f"p{at}{'.jpg' if kind == 'features' else ''},{cells_of(numbers)},{'ab'[at % 2]}"
        )
    table = tmp_path / "train.csv"
    table.write_text("\n".join(rows) + "\n")
    config = PrepareConfig(source=table, label_column="label")
    assert isinstance(open_pictures(config), FilePictures)
